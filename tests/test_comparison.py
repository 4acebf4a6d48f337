"""A failure mode run twice on a live engine: found in the sick run, gone in the cured one, settings back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from core.comparison import COMMAND_LIMIT_S, Comparison
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.control import LOCAL
from core.errors import ControlRefused
from core.failure_modes import failure_mode
from core.live import LiveEngine
from core.live_defaults import build_engine
from core.model_spec import TINY
from tests.live_cases import ready

CURED = [
    "ragged-tail",
    "padding-waste",
    "starvation",
    "memory-ceiling",
    "preemption-thrash",
    "head-of-line",
    "batch-churn",
    "cache-thrash",
]
"""Modes whose detector counts; the others time steps, which a tiny model makes too short to judge."""

SETTINGS = SchedulerConfig(max_num_seqs=5)
POOL = CacheConfig(num_blocks=77)


@pytest.fixture
def live() -> Iterator[LiveEngine]:
    config = EngineConfig(model="tiny", dtype="float32", executor="inprocess", scheduler=SETTINGS, cache=POOL)
    engine = LiveEngine(config, engine_factory=build_engine)
    engine.launch()
    yield ready(engine)
    engine.close()


@pytest.mark.parametrize("key", CURED)
def test_the_detector_finds_it_and_the_cure_removes_it(key: str, live: LiveEngine) -> None:
    comparison = Comparison(live, failure_mode(key), session_id=LOCAL)
    comparison.start()
    assert comparison.join(500), comparison.state
    state = comparison.state
    assert state.phase == "done", state.message
    assert state.before is not None
    assert state.after is not None
    assert state.before.verdict.found, state.before.verdict
    assert not state.after.verdict.found, state.after.verdict
    assert len(state.before.requests) == len(state.after.requests) == failure_mode(key).load.total_requests
    assert state.before.summary.output_tokens == state.after.summary.output_tokens, "the same load in both runs"
    assert (live.config.scheduler, live.config.cache) == (SETTINGS, POOL)
    assert live.load is None


def test_a_mode_with_an_engine_of_its_own_gets_it_and_the_old_one_comes_back(live: LiveEngine) -> None:
    spec = replace(TINY, name="other", num_layers=1)
    mode = replace(failure_mode("ragged-tail"), engine={"model": "synthetic", "spec": spec})
    seen = set()
    comparison = Comparison(live, mode, session_id=LOCAL)
    comparison.start()
    while not comparison.join(0.02):
        info = live.latest().info
        seen.add(info.spec.name if info is not None else "")
    assert comparison.state.phase == "done", comparison.state.message
    assert "other" in seen
    assert (live.config.model, live.config.spec) == ("tiny", None)
    assert (live.config.scheduler, live.config.cache) == (SETTINGS, POOL)


def test_a_session_without_control_runs_nothing(live: LiveEngine) -> None:
    live.acquire("someone")
    comparison = Comparison(live, failure_mode("ragged-tail"), session_id="viewer")
    comparison.start()
    assert comparison.join(90)
    assert comparison.state.phase == "failed"
    assert "control" in comparison.state.message
    assert live.config.scheduler == SETTINGS


def test_a_step_of_some_seconds_is_no_refusal(live: LiveEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a step takes longer than a page waits for an answer; a comparison must wait for it."""
    start, patience = live.start, []

    def slow(**given: object) -> object:
        patience.append(given.get("wait_s", 0.0))
        return start(**given)

    monkeypatch.setattr(live, "start", slow)
    comparison = Comparison(live, failure_mode("ragged-tail"), session_id=LOCAL, cure_too=False)
    comparison.start()
    assert comparison.join(500)
    assert comparison.state.phase == "done", comparison.state.message
    assert patience == [COMMAND_LIMIT_S]
    assert COMMAND_LIMIT_S >= 10.0


def test_cancel_brings_the_settings_back(live: LiveEngine) -> None:
    comparison = Comparison(live, failure_mode("ragged-tail"), session_id=LOCAL)
    comparison.start()
    comparison.cancel()
    assert comparison.join(240)
    assert comparison.state.phase == "cancelled"
    assert live.config.scheduler == SETTINGS
    with pytest.raises(ControlRefused):
        live.pause(session_id="viewer")
