"""The ceilings in the terms of the kernels: exact counts, a stable table, and no step above them."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("numba")

from core.clock import WallClock
from core.runtime.kernels.compiler import unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.runtime import probe
from core.runtime.kernels import ceilings
from core.runtime.kernels.library import BF16_PAIRS, product_dtype
from core.runtime.kernels.team import largest_team, team


class HalfSecondClock:
    """Each timed run takes half a second, whatever it does."""

    def __init__(self):
        self.time_s = 0.0

    def now(self):
        self.time_s += 0.5
        return self.time_s

    def on_step_end(self):
        return None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_operations_and_bytes_are_counted_for_all_threads(threads, dtype):
    crew = team(threads)
    outputs = 32 * ceilings.MAX_PAIR_ROWS if product_dtype(dtype) == BF16_PAIRS else 16 * ceilings.MAX_ROWS
    operations = 2 * outputs * ceilings.PEAK_K * ceilings.PEAK_REPEATS * threads
    assert ceilings.peak_flops(dtype, crew, HalfSecondClock()) == pytest.approx(operations / 0.5)
    assert ceilings.read_bytes_per_s(1 << 20, crew, HalfSecondClock(), passes=3) == pytest.approx(3 * (1 << 20) / 0.5)


def test_the_probe_counts_the_kernels_where_they_are_in_use():
    team(2)
    assert largest_team() is not None
    cpu, peaks, plain = torch.device("cpu"), [], []
    for _ in range(5):  # two measurements at different times: other work may halve one of them, hardly five in a row
        found = probe.measure_ceilings(torch.bfloat16, cpu, "cpu", WallClock(), quick=bool(peaks))
        peaks.append(found.peak_flops)
        plain.append(probe.product_flops(probe.PRODUCT_SIZE, torch.float32, cpu, WallClock()))
        if peaks[-1] > 0.5 * plain[-1]:
            break
    assert peaks[-1] > 0.5 * plain[-1], (peaks, plain)
    assert found.cache_bytes_per_s is None or found.cache_bytes_per_s >= found.dram_bytes_per_s


FIRST_IMPORTS = ("vector", "ceilings", "attention", "team", "library", "step")
ONE_PROCESS_EACH = """
import importlib, os, sys
import numba, torch  # before the forks: each child has them already, and none of ours
assert not any(name.startswith("core.runtime.kernels") for name in sys.modules)
for first in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module("core.runtime.kernels." + first)
        importlib.import_module("core.runtime.kernels.library")
        from core.runtime.kernels.emit import KERNELS
        print(first, *[k.name for k in KERNELS], flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_table_of_kernels_does_not_depend_on_what_is_imported_first():
    """Compiled code in the cache holds places in the table, so they must be the same in every process."""
    command = [sys.executable, "-c", ONE_PROCESS_EACH, *FIRST_IMPORTS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    from core.runtime.kernels import library  # noqa: F401
    from core.runtime.kernels.emit import KERNELS

    names = [k.name for k in KERNELS]
    assert [line.split() for line in run.stdout.splitlines()] == [[first, *names] for first in FIRST_IMPORTS]


def test_products_are_measured_with_as_many_threads_as_the_team_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(*_: object, **__: object) -> float:
        seen.append(torch.get_num_threads())
        return 1e9

    monkeypatch.setattr(probe, "product_flops", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        team(2)
        probe.measure_ceilings(torch.float32, torch.device("cpu"), "cpu", WallClock())
        assert seen
        assert min(seen) >= 2
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
