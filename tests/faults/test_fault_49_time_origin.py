"""Fault 49: absolute and relative clocks mixed; every request lies in the far future and the replay reports success."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.config import CacheConfig, SchedulerConfig
from core.cost_model import CostModel
from core.devices import custom_device
from core.model_spec import TINY
from core.sim_result import SimulationResult
from core.simulator import NothingFinished, SimulationSetup, simulate
from core.step_timer import RooflineTimer
from core.traces.reader import read_trace
from core.traces.replay_prompts import trace_arrivals

GAPS = [0.25, 0.5, 0.125, 1.0, 0.375] * 4
TIMES = [sum(GAPS[:i]) for i in range(20)]
START = datetime(2024, 5, 10, 12, 0, 0, tzinfo=UTC)
UNIX = START.timestamp()


def rows(times: list[str]) -> bytes:
    lines = [f"{t},{5 + i},{3 + i % 4}" for i, t in enumerate(times)]
    return "\n".join(["time,prompt_tokens,output_tokens", *lines]).encode()


FILES = {
    "seconds from 0": rows([str(t) for t in TIMES]),
    "milliseconds from 0": rows([str(int(t * 1000)) for t in TIMES]),
    "seconds from 5,000": rows([str(t + 5000) for t in TIMES]),
    "Unix seconds": rows([f"{UNIX + t:.3f}" for t in TIMES]),
    "Unix milliseconds": rows([str(int((UNIX + t) * 1000)) for t in TIMES]),
    "Unix microseconds": rows([str(int((UNIX + t) * 10**6)) for t in TIMES]),
    "Unix nanoseconds": rows([str(int(UNIX) * 10**9 + int(t * 10**9)) for t in TIMES]),
    "wall-clock text": rows([(START + timedelta(seconds=t)).strftime("%Y-%m-%d %H:%M:%S.%f") for t in TIMES]),
    "wall-clock text with a zone": rows([(START + timedelta(seconds=t)).isoformat() for t in TIMES]),
}


def setup(**more) -> SimulationSetup:
    cost = CostModel.of(TINY)
    device = custom_device("slow", peak_tflops=0.02, bandwidth_gb_s=0.05, memory_gb=1)
    cache = CacheConfig(block_size=4, num_blocks=64)
    return SimulationSetup(cost, RooflineTimer(cost, device), SchedulerConfig(), cache, **more)


def run(data: bytes) -> SimulationResult:
    return simulate(setup(), trace_arrivals(read_trace(data), vocab_size=TINY.vocab_size))


@pytest.mark.parametrize("name", FILES)
def test_the_same_run_whatever_the_origin_and_unit(name: str) -> None:
    plain, other = run(FILES["seconds from 0"]), run(FILES[name])
    assert other.finished == plain.finished == 20
    assert other.duration_s == pytest.approx(plain.duration_s)
    assert other.ttft.p50 == pytest.approx(plain.ttft.p50)
    assert other.ttft.p99 == pytest.approx(plain.ttft.p99)
    assert other.steps == plain.steps


def test_what_was_inferred_is_said() -> None:
    report = read_trace(FILES["milliseconds from 0"]).report
    assert report.time_unit == "ms"
    assert any("inferred: only ms gives a plausible mean rate" in line for line in report.lines())
    assert "is a Unix time in us" in read_trace(FILES["Unix microseconds"]).report.time_note


def test_a_load_that_starts_late_still_starts() -> None:
    """Arrivals given with an absolute clock: the run begins at the first of them, not at 0."""
    trace = read_trace(FILES["seconds from 0"])
    late = simulate(setup(), trace_arrivals(trace, vocab_size=TINY.vocab_size, start_s=UNIX))
    assert late.finished == 20
    assert late.duration_s == pytest.approx(run(FILES["seconds from 0"]).duration_s, rel=1e-6)


def test_no_completion_is_an_error() -> None:
    arrivals = trace_arrivals(read_trace(FILES["seconds from 0"]), vocab_size=TINY.vocab_size)
    with pytest.raises(NothingFinished, match=r"0 of 20 requests finished.*20 refused"):
        simulate(setup(max_model_len=4), arrivals)
