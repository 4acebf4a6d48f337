"""The walls of the house: who may import whom, who may read a clock, who may touch what.

decisions (scheduler, cost model, load)   know no torch, no streamlit, no engine, no clock, no chance of their own
core/runtime                              the only place with torch and with key and value tensors
core/charts                               records in, pictures out: no streamlit, no engine
pages, app.py                             snapshots and records, never the engine or its parts
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core"

PURE = (
    "core.scheduler",
    "core.cost_model",
    "core.roofline",
    "core.devices",
    "core.workload",
    "core.lengths",
    "core.records",
    "core.snapshot",
    "core.sim_executor",
    "core.traces",
    "core.models_catalog",
    "core.memory_plan",
)
"""Floors 0 to 2 by their tops; whatever they reach belongs to these floors as well."""

ABOVE = (
    "core.runtime",
    "core.engine",
    "core.engine_core",
    "core.telemetry",
    "core.factory",
    "core.live",
    "core.charts",
    "core.server",
)
CLOCK_CALLS = {
    "time": {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
GLOBAL_RANDOM = {
    "random": None,  # every function of the module but the classes below
    "np.random": None,
    "numpy.random": None,
    "torch": {"rand", "randn", "randint", "randperm", "multinomial", "manual_seed", "seed"},
}
SEEDED = {"Random", "default_rng", "Generator", "PCG64", "Philox", "SeedSequence", "BitGenerator", "SFC64", "MT19937"}


@cache
def graph() -> grimp.ImportGraph:
    """Imports of core, external packages included."""
    return grimp.build_graph("core", include_external_packages=True, cache_dir=None)


def below(module: str, tops: tuple[str, ...]) -> bool:
    """True if a module is one of `tops` or inside one."""
    return any(module == top or module.startswith(top + ".") for top in tops)


@cache
def pure_modules() -> frozenset[str]:
    """Every module that floors 0 to 2 reach."""
    present = [m for m in graph().modules if below(m, PURE)]
    return frozenset(present).union(*(graph().find_upstream_modules(m) for m in present))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file of a folder, parsed."""
    for path in sorted(folder.rglob("*.py")):
        yield path, parsed(path)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}" if dotted(node.value) else ""
    return ""


def direct_imports(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """(module, name, line) of each import of a file; name is "" for `import module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name, node.lineno


def test_the_contracts_in_pyproject_hold() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_every_top_of_the_pure_floors_is_there() -> None:
    missing = [m for m in PURE if m not in graph().modules]
    assert not missing


@pytest.mark.parametrize("forbidden", ["torch", "streamlit", "altair", "starlette"])
def test_decisions_do_not_reach_heavy_packages(forbidden: str) -> None:
    assert forbidden not in pure_modules()


def test_decisions_do_not_reach_the_floors_above() -> None:
    assert not [m for m in pure_modules() if below(m, ABOVE)]


def test_only_the_runtime_imports_torch() -> None:
    found = [m for m in graph().find_modules_that_directly_import("torch") if not m.startswith("core.runtime.")]
    assert not found


def test_core_does_not_import_streamlit_or_pages() -> None:
    for path, tree in trees(CORE):
        for module, _, line in direct_imports(tree):
            assert module.split(".")[0] not in ("streamlit", "pages", "app"), f"{path}:{line} imports {module}"


def test_charts_do_not_reach_the_engine() -> None:
    parts = [m for m in graph().modules if m.startswith("core.charts")]
    reached = set().union(*(graph().find_upstream_modules(m) for m in parts))
    wrong = ("core.engine", "core.engine_core", "core.scheduler", "core.block_pool", "core.live", "core.runtime", "torch")
    assert not [m for m in reached if below(m, wrong)]


def test_pages_see_pictures_not_the_engine() -> None:
    wrong = (
        "core.engine",
        "core.engine_core",
        "core.scheduler",
        "core.scheduler_state",
        "core.block_pool",
        "core.kv_cache_manager",
    )
    wrong_names = {("core.request", "Request"), ("core.factory", "create_engine")}
    files = [(ROOT / "app.py"), *sorted((ROOT / "pages").rglob("*.py"))]
    assert len(files) > 1
    for path in files:
        for module, name, line in direct_imports(parsed(path)):
            assert not below(module, (*wrong, "core.runtime")), f"{path}:{line} imports {module}"
            assert not below(f"{module}.{name}", (*wrong, "core.runtime")), f"{path}:{line} imports {module}.{name}"
            assert (module, name) not in wrong_names, f"{path}:{line} imports {name}"


def clock_reads(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Calls, references and imports that read a clock."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = dotted(node.value).rpartition(".")[2]
            if node.attr in CLOCK_CALLS.get(owner, ()):
                yield dotted(node), node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in CLOCK_CALLS:
            for alias in node.names:
                if alias.name in CLOCK_CALLS[node.module]:
                    yield f"{node.module}.{alias.name}", node.lineno


def random_uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Uses of a random generator that belongs to the whole process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = dotted(node.value), node.attr
            if owner in GLOBAL_RANDOM and name not in SEEDED:
                names = GLOBAL_RANDOM[owner]
                if names is None or name in names:
                    yield f"{owner}.{name}", node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            for alias in node.names:
                if alias.name not in SEEDED:
                    yield f"{node.module}.{alias.name}", node.lineno
        if isinstance(node, ast.Call):
            name = dotted(node.func).rpartition(".")[2]
            if name in ("default_rng", "Random") and not node.args and not node.keywords:
                yield f"{name}() without a seed", node.lineno


def module_of(path: Path) -> str:
    """Dotted name of a file of core."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def engine_side() -> Iterator[tuple[Path, ast.Module]]:
    """Files of everything that decides or keeps the books: all pure floors and the engine."""
    engine = pure_modules() | graph().find_upstream_modules("core.engine") | {"core.engine", "core.replay"}
    for path, tree in trees(CORE):
        if module_of(path) in engine:
            yield path, tree


def test_only_the_clock_reads_a_clock() -> None:
    seen = 0
    for path, tree in engine_side():
        seen += 1
        if path.name != "clock.py":
            assert not list(clock_reads(tree)), f"{path} reads a clock: {list(clock_reads(tree))}"
    assert seen > 20


def test_chance_comes_from_seeds_only() -> None:
    for path, tree in trees(CORE):
        assert not list(random_uses(tree)), f"{path} uses random state of the process: {list(random_uses(tree))}"


def test_ids_of_the_engine_side_are_not_uuids() -> None:
    for path, tree in engine_side():
        assert not [line for module, _, line in direct_imports(tree) if module == "uuid"], f"{path} imports uuid"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.perf_counter()", ["time.perf_counter"]),
        ("from time import monotonic", ["time.monotonic"]),
        ("import datetime\ndatetime.datetime.now()", ["datetime.datetime.now"]),
        ("clock.now()", []),
    ],
)
def test_the_clock_search_finds_clocks(source: str, found: list[str]) -> None:
    assert [name for name, _ in clock_reads(ast.parse(source))] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import random\nrandom.random()", ["random.random"]),
        ("import random\nrandom.Random(3).random()", []),
        ("import numpy as np\nnp.random.rand()", ["np.random.rand"]),
        ("import numpy as np\nnp.random.default_rng()", ["default_rng() without a seed"]),
        ("import numpy as np\nnp.random.default_rng(7)", []),
        ("import torch\ntorch.manual_seed(1)", ["torch.manual_seed"]),
        ("from random import choice", ["random.choice"]),
    ],
)
def test_the_random_search_finds_global_state(source: str, found: list[str]) -> None:
    assert [name for name, _ in random_uses(ast.parse(source))] == found


def test_only_the_runtime_touches_keys_and_values() -> None:
    for path, tree in trees(CORE):
        if "runtime" in path.parts:
            continue
        names = {name for module, name, _ in direct_imports(tree) if module.startswith("core.runtime")}
        assert not names & {"KVCache", "StepBatch", "ModelWeights"}, f"{path} imports {names}"


def test_only_the_block_pool_touches_reference_counts() -> None:
    for path, tree in trees(CORE):
        if path.name == "block_pool.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("_refs", "_free", "_index", "_hash_of"):
                owner = dotted(node.value)
                assert owner == "self", f"{path}:{node.lineno} reaches into a block pool through {owner}.{node.attr}"


def test_streamlit_is_only_behind_the_glass() -> None:
    for folder in (CORE, ROOT / "benchmarks"):
        for path, tree in trees(folder):
            used = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and dotted(n.value) == "st"]
            assert not used, f"{path} calls st.* in line {used[0]}"


def test_the_core_package_is_empty() -> None:
    assert (CORE / "__init__.py").read_text().strip() == ""


@pytest.mark.parametrize(
    "modules",
    [
        "core.scheduler, core.cost_model, core.workload",
        "core.engine, core.replay, core.factory, core.live",
        "core.runtime.model_source, core.runtime.worker",
    ],
)
def test_importing_the_engine_loads_no_torch_and_no_streamlit(modules: str) -> None:
    code = f"import sys, {modules}; print([m for m in ('torch', 'streamlit', 'altair') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.strip() == "[]"
