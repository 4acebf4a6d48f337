"""What-ifs, sensitivity and sweeps: knobs do what they say, fronts are fronts, runs repeat, cancel ends."""

from __future__ import annotations

import dataclasses
import pickle
import socket
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import SchedulerConfig
from core.devices import DEVICES, custom_device
from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import LoadSpec, PromptKind
from core.model_spec import TINY
from core.models_catalog import model_named
from core.request import SLO
from core.step_timer import KNOTS, StepCoefficients
from core.sweep import Axis, Goal, SearchMethod, SweepRow, SweepSpec, best_under, pareto_front, run_sweep, sample
from core.traces.report import TraceReport
from core.traces.trace import Trace
from core.whatif import NOTCHES, SWITCHES, WhatIf, first_part, moved, sensitivity
from core.workload import Arrival

LOAD = LoadSpec(
    rate_per_s=30.0, num_requests=24, prompt_tokens=LengthSpec.uniform(20, 200), output_tokens=LengthSpec.uniform(5, 40),
    prompt_kind=PromptKind.RANDOM, seed=1,
)  # fmt: skip
H100 = DEVICES["H100 SXM"]
BASE = WhatIf(
    model_named("Llama 3.1 8B"), H100, SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=512), load=LOAD,
    max_model_len=2048, slo=SLO(ttft_s=0.1, itl_s=0.05),
)  # fmt: skip
SLOW = custom_device("slow", peak_tflops=0.02, bandwidth_gb_s=0.05, memory_gb=1, price_per_hour=2.0)


def test_a_knob_changes_one_thing() -> None:
    base = BASE.run()
    faster = BASE.with_knob("memory_bandwidth", 2 * H100.memory_bandwidth).run()
    assert faster.tpot.p50 == pytest.approx(base.tpot.p50 / 2, rel=0.05)
    assert BASE.with_knob("weight_dtype", "int4").run().tpot.p50 < 0.5 * base.tpot.p50
    group = BASE.with_knob("tensor_parallel", 2)
    assert group.setup().label == "Llama 3.1 8B on H100 SXM x 2"
    assert group.knob("num_blocks") > 2 * BASE.knob("num_blocks")
    assert BASE.with_knob("device", DEVICES["L4"]).run().tpot.p50 > 5 * base.tpot.p50
    dense = BASE.with_knob("rate", 4.0).run()
    assert dense.duration_s < base.duration_s * 0.7
    assert dense.mean_batch > base.mean_batch
    assert BASE.with_knob("max_num_seqs", 2).knob("max_num_seqs") == 2
    for name, value in (("nonsense", 1), ("max_num_seqs", 0), ("memory_bandwidth", -1.0), ("rate", -1.0)):
        with pytest.raises(ConfigError, match=name):
            BASE.with_knob(name, value).run()


def test_the_same_load_in_three_forms() -> None:
    arrivals = tuple(Arrival(10.0 + 0.1 * i, i, (i + 1,) * 30, 10) for i in range(20))
    trace = Trace(TraceReport("t", "own", "", 20, 0), np.full(20, 30), np.full(20, 10), np.arange(20) * 0.1)
    by_list = dataclasses.replace(BASE, load=None, arrivals=arrivals).run()
    by_trace = dataclasses.replace(BASE, load=None, trace=trace).run()
    assert by_list.finished == by_trace.finished == 20
    assert by_list.duration_s == pytest.approx(by_trace.duration_s)
    assert dataclasses.replace(BASE, load=None, arrivals=arrivals, rate=2.0).run().duration_s < by_list.duration_s * 0.6
    with pytest.raises(ConfigError, match="no load"):
        dataclasses.replace(BASE, load=None).run()
    with pytest.raises(ConfigError, match="never ends"):
        dataclasses.replace(BASE, load=LoadSpec()).run()


def test_a_first_part_of_each_kind_of_load() -> None:
    trace = Trace(TraceReport("t", "own", "", 20, 0), np.full(20, 30), np.full(20, 10), np.arange(20) * 0.1)
    arrivals = tuple(Arrival(10.0 + 0.1 * i, i, (i + 1,) * 30, 10) for i in range(20))
    for changes in ({}, {"load": None, "trace": trace}, {"load": None, "arrivals": arrivals}):
        whole = dataclasses.replace(BASE, **changes)
        part = first_part(whole, 5)
        assert part is not None
        assert part.run().finished == 5
        assert first_part(whole, 15) is None, "hardly less work than the whole"


def test_this_machine_by_its_fitted_law() -> None:
    law = StepCoefficients(1e-4, 1e-6, (1e-9,) * len(KNOTS), 1e-10, 1e-11, 1e-10, 2e-4, 5e-6, 1e-7)
    here = WhatIf(
        TINY, SLOW, coefficients=law, num_blocks=128, load=dataclasses.replace(LOAD, prompt_tokens=LengthSpec.fixed(30))
    )
    result = here.run()
    assert result.timer == "law fitted on slow"
    assert result.mean_step_s > 3e-4
    with pytest.raises(ConfigError, match="num_blocks is not set"):
        dataclasses.replace(here, num_blocks=None).run()
    with pytest.raises(ConfigError, match="one device"):
        here.with_knob("tensor_parallel", 2).run()


def test_sensitivity_names_the_knob_that_matters() -> None:
    """Decoding few rows on an H100 is bound by memory: bandwidth moves TPOT, the peak does not."""
    found = {s.knob: s for s in sensitivity(BASE, "tpot_p50")}
    assert set(found) == {*NOTCHES, *SWITCHES}
    base = BASE.run().tpot.p50
    width, peak = found["memory_bandwidth"], found["peak_flops"]
    assert width.up.figure < 0.9 * base < base < 0.9 * width.down.figure
    assert peak.up.figure == pytest.approx(base, rel=0.01)
    assert found["enable_prefix_caching"].down is None
    assert found["enable_prefix_caching"].up.value is False
    small = dataclasses.replace(BASE, num_blocks=2)
    blocked = next(s for s in sensitivity(small, "tpot_p50", knobs=("num_blocks",)))
    assert "refused" in blocked.down.problem
    assert list(sensitivity(BASE, "tpot_p50", should_stop=lambda: True)) == []
    assert moved(BASE.with_knob("max_num_seqs", 1), "max_num_seqs", -1) is None


AXES = (Axis("max_num_seqs", (1, 4, 16)), Axis("device", (H100, DEVICES["L4"])), Axis("enable_chunked_prefill", (True, False)))


def test_a_grid_tries_everything_once_and_in_parallel_gives_the_same() -> None:
    spec = SweepSpec(BASE, AXES)
    assert spec.total == 12
    alone = list(run_sweep(spec))
    assert len({row.indices for row in alone}) == 12
    assert alone[0].settings == (("max_num_seqs", "1"), ("device", "H100 SXM"), ("enable_chunked_prefill", "True"))
    together = list(run_sweep(spec, n_jobs=2))
    assert together == alone
    throughput = {row.indices: row.figure("output_tokens_per_s") for row in alone}
    assert throughput[2, 0, 0] > throughput[0, 0, 0]
    assert throughput[2, 0, 0] > throughput[2, 1, 0]


def test_a_point_that_cannot_run_is_a_row_with_its_problem() -> None:
    axes = (Axis("model", (model_named("Llama 3.1 8B"), model_named("Llama 3.1 70B"))),)
    fits, too_big = run_sweep(SweepSpec(BASE, axes))
    assert fits.figure("ttft_p95") > 0
    assert "does not fit" in too_big.problem
    assert too_big.figure("ttft_p95") is None
    assert too_big.settings == (("model", "Llama 3.1 70B"),)


def test_random_points_are_different_and_repeatable() -> None:
    first = list(sample(AXES, 8, seed=3))
    assert first == list(sample(AXES, 8, seed=3))
    assert len(set(first)) == 8
    assert first != list(sample(AXES, 8, seed=4))
    spec = SweepSpec(BASE, AXES, SearchMethod.RANDOM, points=5, seed=3)
    assert [row.indices for row in run_sweep(spec)] == list(sample(AXES, 5, seed=3))


def test_a_guided_search_finds_the_best_corner() -> None:
    axes = (Axis("max_num_seqs", (1, 2, 4, 8, 16)), Axis("max_num_batched_tokens", (32, 128, 512)))
    goals = (Goal("output_tokens_per_s"),)
    spec = SweepSpec(BASE, axes, SearchMethod.GUIDED, points=9, goals=goals, seed=0)
    rows = list(run_sweep(spec))
    assert len({r.indices for r in rows}) == len(rows) == 9
    best = best_under(rows, goals[0], {})
    everything = best_under(list(run_sweep(SweepSpec(BASE, axes))), goals[0], {})
    assert best.figure("output_tokens_per_s") >= 0.9 * everything.figure("output_tokens_per_s")
    exhausted = list(run_sweep(dataclasses.replace(spec, axes=(Axis("max_num_seqs", (1, 4)),), points=50)))
    assert len(exhausted) == 2


def test_cancel_ends_a_sweep() -> None:
    rows = []
    for row in run_sweep(SweepSpec(BASE, AXES), should_stop=lambda: len(rows) >= 3):
        rows.append(row)  # noqa: PERF402 - the length is read while it grows
    assert len(rows) == 3


def row(*values: float | None) -> SweepRow:
    return SweepRow((0,), (), tuple(zip(("a", "b"), values, strict=True)))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_a_front_beats_everything_and_nothing_beats_it(points: list[tuple[int, int]]) -> None:
    goals = (Goal("a"), Goal("b", maximise=False))
    rows = [row(float(a), float(b)) for a, b in points]
    front = pareto_front(rows, goals)
    assert front
    values = {(r.figure("a"), r.figure("b")) for r in front}
    for a, b in points:
        beaten = any(x >= a and y <= b and (x, y) != (a, b) for x, y in points)
        assert ((float(a), float(b)) in values) == (not beaten)


def test_best_under_limits() -> None:
    rows = [row(5.0, 1.0), row(9.0, 3.0), row(7.0, 2.0), row(99.0, None)]
    assert best_under(rows, Goal("a"), {"b": 2.5}).figure("a") == 7.0
    assert best_under(rows, Goal("b", maximise=False), {}).figure("b") == 1.0
    assert best_under(rows, Goal("a"), {"b": 0.5}) is None


def test_cost_of_a_point() -> None:
    priced = dataclasses.replace(BASE, model=TINY, device=SLOW, max_model_len=None, gpu_memory_utilization=0.5)
    (found,) = run_sweep(SweepSpec(priced, (Axis("max_num_seqs", (8,)),)))
    hours = 1e6 / (3600 * found.figure("output_tokens_per_s"))
    assert found.figure("device_hours_per_million_tokens") == pytest.approx(hours)
    assert found.figure("cost_per_million_tokens") == pytest.approx(2.0 * hours)
    assert found.figure("cost_per_hour") == 2.0


def test_specs_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="at least one axis"):
        SweepSpec(BASE, ())
    with pytest.raises(ConfigError, match="each knob once"):
        SweepSpec(BASE, (AXES[0], AXES[0]))
    with pytest.raises(ConfigError, match="no value"):
        Axis("max_num_seqs", ())
    with pytest.raises(ConfigError, match="more than 20000"):
        SweepSpec(BASE, tuple(Axis(k, tuple(range(1, 41))) for k in ("max_num_seqs", "block_size", "lookahead")))
    for cluster, message in (("spark:x", "not understood"), ("dask:", "not understood")):
        with pytest.raises(ConfigError, match=message):
            next(run_sweep(SweepSpec(BASE, AXES), cluster=cluster))
    assert pickle.loads(pickle.dumps(BASE)).scheduler == BASE.scheduler


@pytest.mark.parametrize("cluster", ["ray:127.0.0.1:{port}", "dask:tcp://127.0.0.1:{port}", "ray:127.0.0.1:x", "dask:tcp://[::1"])
def test_a_cluster_that_is_not_there_is_said_at_once(cluster: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]  # bound, but nothing listens
        began_s = time.monotonic()
        with pytest.raises(ConfigError, match="cannot be reached"):
            next(run_sweep(SweepSpec(BASE, AXES), cluster=cluster.format(port=port)))
    assert time.monotonic() - began_s < 20


def test_an_address_that_the_clusters_library_refuses_is_a_problem_of_the_settings() -> None:
    pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    with pytest.raises(ConfigError, match="nonsense cannot be reached: missing port number"):
        next(run_sweep(SweepSpec(BASE, AXES), cluster="dask:nonsense"))


def not_here(*args: object, **kwargs: object) -> None:
    raise AssertionError("a point of a cluster's sweep ran in the process that asked for it")


def test_the_same_sweep_on_a_local_dask_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    spec = SweepSpec(BASE, AXES)
    alone = list(run_sweep(spec))
    # Its workers run the main module anew, which a page's test in the same process has replaced by the page.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        monkeypatch.setattr(WhatIf, "run", not_here)
        assert list(run_sweep(spec, n_jobs=2, cluster=f"dask:{cluster.scheduler_address}")) == alone
        with pytest.raises(ValueError, match="No global client found"):
            distributed.get_client()  # the sweep took its connection along


def test_the_same_sweep_on_a_local_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    spec = SweepSpec(BASE, AXES)
    alone = list(run_sweep(spec))
    root = str(Path(__file__).resolve().parents[1])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root}})
    try:
        monkeypatch.setattr(WhatIf, "run", not_here)
        assert list(run_sweep(spec, n_jobs=8, cluster=f"ray:{ray.get_runtime_context().gcs_address}")) == alone
        assert ray.is_initialized()  # a connection that was there before stays
    finally:
        ray.shutdown()
