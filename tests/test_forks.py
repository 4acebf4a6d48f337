"""Forks on a live engine: the same requests and tokens on both sides, what differs is what the knobs do; lanes add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from core.charts import lanes
from core.comparison import Comparison, equal_outputs
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.control import LOCAL
from core.errors import ConfigError
from core.forks import FORKS, fork, fork_of
from core.live import LiveEngine
from core.live_defaults import build_engine
from core.load_spec import ArrivalProcess, LoadSpec
from tests.live_cases import ME, ready, wait_until

SETTINGS = SchedulerConfig(max_num_seqs=5)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveEngine]:
    config = EngineConfig(model="tiny", dtype="float32", executor="inprocess", scheduler=SETTINGS)
    engine = LiveEngine(config, engine_factory=build_engine)
    engine.launch()
    yield ready(engine)
    engine.close()


@pytest.mark.parametrize("key", ["fixed", "swap", "queue"])
def test_both_sides_say_the_same_and_differ_in_what_the_knobs_do(key: str, live: LiveEngine) -> None:
    chosen = fork(key)
    busy = LoadSpec(process=ArrivalProcess.CLOSED_LOOP, users=4, seed=1)
    assert live.set_load(**ME, **{f.name: getattr(busy, f.name) for f in fields(busy)}).accepted
    wait_until(lambda: live.latest().num_running, what="a load under way")
    comparison = Comparison(live, chosen, session_id=LOCAL)
    comparison.start()
    assert comparison.join(500), comparison.state
    state = comparison.state
    assert state.phase == "done", state.message
    first, second = state.before, state.after
    assert first is not None
    assert second is not None
    total = chosen.load.total_requests
    assert equal_outputs(first, second) == (total, total), "float32: token for token"
    assert [len(t) for t in first.tokens] == [len(t) for t in second.tokens]
    assert sum(map(len, first.tokens)) == first.summary.output_tokens
    wasted = [sum(r.padded_tokens for r in run.records) for run in (first, second)]
    if key == "fixed":
        assert wasted[0] > 0
        assert wasted[1] == 0
        assert second.summary.steps < first.summary.steps
    if key != "swap":
        assert first.summary.preemptions == second.summary.preemptions == 0, "none of the load before it"
    if key == "swap":
        assert first.summary.preemptions
        assert sum(r.swap_bytes for r in second.records) > 0
        assert sum(r.swap_bytes for r in first.records) == 0
    assert live.config.scheduler == SETTINGS
    frame = lanes.lane_frame(first.records, lanes.span_s(first.records))
    axis_s = lanes.span_s(first.records)
    area = frame[frame.part != "end"].rows.sum() * axis_s / lanes.BINS
    rows = [r.prefill_requests + r.decode_requests + (0 if r.prefill_requests else r.padded_tokens) for r in first.records]
    assert area == pytest.approx(sum(n * r.duration_s for n, r in zip(rows, first.records, strict=True)), rel=0.02)


def test_every_fork_differs_in_something_and_ends() -> None:
    for one in FORKS:
        assert one.differences
        assert one.load.total_requests
    with pytest.raises(KeyError, match="known: fixed"):
        fork("nonsense")


def test_the_live_fork_takes_knobs_of_both_configurations_and_a_finite_load() -> None:
    load = LoadSpec(process=ArrivalProcess.CLOSED_LOOP, users=3)
    made = fork_of(SETTINGS, CacheConfig(), load, {"max_num_seqs": 9, "block_size": 32}, 12)
    assert {n: (a, b) for n, a, b in made.differences} == {"max_num_seqs": ("5", "9"), "block_size": ("16", "32")}
    assert made.load == replace(load, num_requests=12)
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        fork_of(SETTINGS, CacheConfig(), load, {"max_num_seqs": 0}, 12)
