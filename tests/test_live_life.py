"""The life of the live engine: a failure and the way out, another model, start, first probe, reset and end."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
import time

import pytest
from engine_cases import scripted_engine
from live_cases import (
    FOREVER,
    ME,
    PATIENCE_S,
    SHORT,
    SLOW_STEP_S,
    Gate,
    crowding,
    finished,
    live_engine,
    ready,
    wait_until,
)

import core.live
from core.clock import PausableClock
from core.commands import Outcome
from core.config import EngineConfig
from core.errors import CheckpointError, ConfigError, ControlRefused, ExecutorError, WorkerDied
from core.live import LiveEngine, get_live, running_engine
from core.request import SamplingParams


def test_reset_begins_again_and_tells_the_readers():
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        request_id = live.submit("x", sampling=FOREVER, **ME).value
        wait_until(lambda: live.latest().num_running == 1)
        assert live.reset(**ME).accepted
        assert live.stream(request_id).end.message == "the engine was reset"
        wait_until(lambda: live.latest().num_running == 0)
        assert live.latest().totals.submitted == 0
        assert live.latest().pool.live == live.latest().pool.cached == 0
        again = live.submit("x", sampling=SHORT, **ME)
        assert finished(live, again.value) == "length"


def test_a_failed_step_is_said_and_start_goes_on_with_every_request():
    gate = Gate()
    with live_engine(gate=gate, paused=True) as live:
        ready(live)
        ids = [live.submit("x", sampling=SamplingParams(max_tokens=60, ignore_eos=True), **ME).value for _ in range(3)]
        live.step_once(steps=2, **ME)
        assert live.latest().num_running == 3
        gate.fail_next = ExecutorError("the kernel was unhappy")
        live.start(**ME)
        wait_until(lambda: live.latest().state == "failed")
        assert "the kernel was unhappy" in live.latest().message
        assert live.step_once(**ME).value == 0
        assert live.start(**ME).accepted
        for request_id in ids:
            assert finished(live, request_id) == "length"


def test_a_defect_in_a_step_stops_the_engine_and_reset_builds_a_new_one(caplog):
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.fail_next = ZeroDivisionError("a defect")
        request_id = live.submit("x", sampling=FOREVER, **ME).value
        wait_until(lambda: live.latest().state == "failed")
        assert "ZeroDivisionError: a defect" in live.latest().message
        assert not live.start(**ME).accepted
        assert live.reset(**ME).accepted
        assert live.stream(request_id).end is not None
        assert finished(live, live.submit("y", sampling=SHORT, **ME).value) == "length"
        assert "a step failed" in caplog.text


def make_models(config, progress):
    """A factory that knows two models."""
    if config.model == "broken":
        raise CheckpointError("broken/config.json is no JSON")
    if config.model == "defect":
        raise KeyError("lm_head")
    return scripted_engine(clock=PausableClock(), num_blocks=32 if config.model == "tiny" else 48)


def test_another_model_takes_over_and_a_broken_one_leaves_the_old():
    with live_engine(factory=make_models) as live:
        ready(live)
        assert live.latest().pool.total == 32
        request_id = live.submit("x", sampling=SamplingParams(max_tokens=100, ignore_eos=True), **ME).value
        assert live.set_model(model="other", **ME).accepted
        wait_until(lambda: live.latest().pool.total == 48)
        assert live.stream(request_id).end is not None
        for name, words in (("broken", "no JSON"), ("defect", "KeyError: 'lm_head'")):
            result = live.set_model(model=name, **ME)
            assert result.outcome is Outcome.REFUSED
            assert words in result.message
            assert "previous model runs again" in result.message
            wait_until(lambda: live.latest().state == "idle")
            assert words in live.latest().message
        assert finished(live, live.submit("x", sampling=SHORT, **ME).value) == "length"
        with pytest.raises(ConfigError, match="unknown knob modle"):
            live.set_model(modle="tiny", **ME)


def test_an_engine_that_cannot_start_says_why_and_can_be_given_another_model():
    with live_engine(factory=make_models, config=EngineConfig(model="broken")) as live:
        wait_until(lambda: live.latest().state == "failed")
        assert "config.json is no JSON" in live.latest().message
        assert "no JSON" in live.reset(**ME).message
        with pytest.raises(ControlRefused, match="still starting"):
            live.submit("x", **ME)
        assert live.set_model(model="tiny", **ME).accepted
        assert finished(live, live.submit("x", sampling=SHORT, **ME).value) == "length"


def test_one_engine_a_process_whoever_asks():
    with live_engine() as live:
        assert running_engine() is live
        assert get_live() is live
        second = LiveEngine(EngineConfig(model="tiny"), engine_factory=lambda c, p: scripted_engine())
        with pytest.raises(ControlRefused, match="already runs"):
            second.launch()
        # A module that is imported a second time (an editor saved it) has other globals and finds the same engine.
        spec = importlib.util.spec_from_file_location("core_live_again", core.live.__file__)
        again = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
        assert again.get_live() is live
    assert running_engine() is None
    with pytest.raises(ControlRefused, match="has been stopped"):
        live.launch()


def test_close_is_quick_refuses_late_commands_and_puts_the_interpreter_back():
    interval = sys.getswitchinterval()
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        assert sys.getswitchinterval() < interval
        gate.delay_s = 0.01
        request_id = live.submit("x", sampling=FOREVER, **ME).value
        began = time.perf_counter()
        live.close()
        live.close()
        assert time.perf_counter() - began < 2 * crowding()
        assert live.latest().state == "stopped"
        assert live.latest().num_running == 0
        assert live.stream(request_id).end.message == "the engine has stopped"
        with pytest.raises(ControlRefused, match="has stopped"):
            live.pause(**ME)
    assert sys.getswitchinterval() == pytest.approx(interval)
    gc.unfreeze()


def test_a_stop_during_the_start_does_not_wait_for_the_load():
    def slow(config, progress):
        for part in range(1000):
            progress(f"reading part {part}")
            time.sleep(0.01)
        raise AssertionError("the load was not ended")

    with live_engine(factory=slow) as live:
        wait_until(lambda: live.latest().progress.startswith("reading part 1"))
        assert live.latest().state == "starting"
        assert live.latest().info is None
        began = time.perf_counter()
        live.close()
        assert time.perf_counter() - began < 1 * crowding()
        assert live.latest().state == "stopped"


def test_ceilings_are_measured_once_and_shown():
    from core.snapshot import RooflineCeilings

    calls = []

    def probe(engine):
        calls.append(engine)
        return RooflineCeilings("this machine", 1e11, 2e10, None, 1 << 28, "float32")

    with live_engine(probe=probe, factory=make_models) as live:
        ready(live)
        assert live.latest().ceilings.peak_flops == 1e11
        live.set_model(model="other", **ME)
        wait_until(lambda: live.latest().pool.total == 48)
        assert live.latest().ceilings.peak_flops == 1e11
        assert len(calls) == 1


def test_a_probe_that_fails_leaves_the_ceilings_unknown_and_the_engine_running(caplog):
    def probe(engine):
        raise WorkerDied("the worker process was ended by SIGKILL")

    with live_engine(probe=probe) as live:
        assert finished(ready(live), live.submit("x", sampling=SHORT, **ME).value) == "length"
        assert live.latest().ceilings is None
        assert "could not be measured: the worker process was ended" in caplog.text


def test_a_stop_during_the_first_probe_closes_the_engine_that_was_just_built():
    engines, tells, inside = [], [], threading.Event()

    def factory(config, progress):
        engines.append(scripted_engine())
        tells.append(progress)
        return engines[-1]

    def probe(engine):
        inside.set()
        wait_until(lambda: tells[0]("still measuring"), what="the wish to end, which is raised")

    with live_engine(factory=factory, probe=probe) as live:
        assert inside.wait(PATIENCE_S)
        live.close()
        assert live.latest().state == "stopped"
    assert [engine.executor.closed for engine in engines] == [1]


def test_the_laws_can_be_checked_live_and_a_broken_one_stops_the_steps_and_is_told():
    engines = []

    def factory(wanted, progress):
        engines.append(scripted_engine(check_invariants=False))
        return engines[-1]

    with live_engine(factory=factory) as live:
        ready(live)
        live.submit("x", sampling=FOREVER, **ME)
        assert not live.latest().config.check_invariants
        assert live.set_checks(True, **ME).accepted
        assert live.latest().config.check_invariants
        live.pause(**ME)
        engines[0].scheduler.kv.pool._refs[0] += 1
        refused = live.set_checks(True, **ME)
        assert not refused.accepted
        assert "broke a law" in refused.message
        assert live.latest().state == "failed"
        live.reset(**ME)
        ready(live)
