"""The live engine's loop: pictures that never make it wait, load that starts and changes, speed, sleep when idle."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
from live_cases import (
    FOREVER,
    ME,
    PATIENCE_S,
    Gate,
    live_engine,
    ready,
    wait_until,
)

from core.clock import PausableClock, StepClock, VirtualClock, WallClock
from core.commands import Outcome
from core.control import LOCAL, LiveLimits
from core.errors import ControlRefused
from core.live import LiveEngine
from core.live_pictures import PUBLISH_S
from core.request import SamplingParams
from core.snapshot import EngineSnapshot
from core.workload import LengthSpec, LoadSpec


def test_an_idle_engine_sleeps():
    with live_engine() as live:
        ready(live)
        thread = next(t for t in threading.enumerate() if t.name == "engine")
        assert thread.daemon
        busy = time.pthread_getcpuclockid(thread.ident)
        begun_s, before_s = WallClock().now(), time.clock_gettime(busy)
        pictures = distinct_pictures(live, 5)
        assert time.clock_gettime(busy) - before_s < 0.25 * (WallClock().now() - begun_s)
        gaps_s = [b.wall_time_s - a.wall_time_s for a, b in pairwise(pictures)]
        assert 0.2 <= min(gaps_s) <= 0.5, "four pictures a second"


def distinct_pictures(live: LiveEngine, count: int) -> list[EngineSnapshot]:
    """The next `count` pictures that a reader sees; some may be missed between them."""
    found = [live.latest()]
    while len(found) <= count:
        wait_until(lambda: live.latest().revision > found[-1].revision, what="the next picture")
        found.append(live.latest())
    return found[1:]


def test_pictures_are_throttled_while_running_and_stay_in_order():
    gate = Gate()
    with live_engine(gate=gate, knobs={"num_blocks": 512}) as live:
        ready(live)
        gate.delay_s = 0.005
        for _ in range(4):
            live.submit("x", sampling=SamplingParams(max_tokens=500, ignore_eos=True), **ME)
        wait_until(lambda: live.latest().step > 3)
        pictures = distinct_pictures(live, 10)
        assert {p.state for p in pictures} == {"running"}
        first, last = pictures[0], pictures[-1]
        count = last.revision - first.revision
        assert count <= (last.wall_time_s - first.wall_time_s) / PUBLISH_S + 1
        assert last.step - first.step > count
        order = [(p.revision, p.step, p.wall_time_s, p.time_s) for p in pictures]
        assert order == sorted(order)


def test_readers_do_not_wait_for_a_step_and_late_commands_say_so():
    gate = Gate()
    with live_engine(gate=gate, limits=LiveLimits(max_commands=5)) as live:
        ready(live)
        gate.open.clear()  # a command is answered before the step that it is good for
        live.submit("x", sampling=FOREVER, **ME)
        assert gate.inside.wait(PATIENCE_S)
        began = time.thread_time()
        for _ in range(100):  # whoever waited for the step would wait until the gate gives up
            live.latest()
            live.history()
            live.lease()
        assert time.thread_time() - began < 0.5
        assert not gate.open.is_set()
        result = live.pause(session_id=LOCAL, wait_s=0.05)
        assert (result.outcome, result.accepted) == (Outcome.WAITING, False)
        for _ in range(4):
            live.start(session_id=LOCAL, wait_s=0.0)
        with pytest.raises(ControlRefused, match="5 commands already wait"):
            live.start(session_id=LOCAL, wait_s=0.0)
        gate.open.set()
        wait_until(lambda: "pause" in [entry.command for entry in live.audit()], what="the late command")
        assert live.pause(**ME).accepted


def test_load_starts_changes_and_stops_live():
    lengths = {"prompt_tokens": LengthSpec.fixed(5), "output_tokens": LengthSpec.fixed(3)}
    with live_engine(knobs={"num_blocks": 256}) as live:
        ready(live)
        assert live.load is None
        assert live.set_load(process="closed_loop", users=4, ignore_eos=True, **lengths, **ME).accepted
        wait_until(lambda: live.load_counts.ended > 40)
        counts = live.load_counts
        assert counts.in_flight <= 4
        assert "4 users" in live.latest().load_label
        assert live.set_load(users=2, **ME).accepted
        assert live.load.users == 2
        assert live.load.prompt_tokens == lengths["prompt_tokens"], "a change keeps the other knobs"
        for knobs, words in [
            ({"users": 513}, "users is 513; this dashboard allows at most 512"),
            ({"process": "poisson", "rate_per_s": 1e4}, "rate_per_s is 10000"),
            ({"process": "burst", "burst_size": 5000}, "burst_size is 5000"),
            ({"prompt_tokens": LengthSpec.fixed(512)}, "512 tokens, but the model takes 512"),
            ({"users": 0}, "users is 0"),
        ]:
            result = live.set_load(**knobs, **ME)
            assert result.outcome is Outcome.REFUSED
            assert words in result.message
        assert live.load.users == 2
        assert live.set_load(on=False, **ME).accepted
        wait_until(lambda: live.latest().state == "idle")
        assert live.load is None
        assert live.latest().load_label == ""


@pytest.mark.parametrize("clock", [StepClock, VirtualClock, PausableClock])
def test_an_idle_engine_reaches_the_next_arrival_on_every_clock(clock):
    load = LoadSpec(
        process="constant", rate_per_s=5.0, num_requests=4,
        prompt_tokens=LengthSpec.fixed(3), output_tokens=LengthSpec.fixed(1), ignore_eos=True,
    )  # fmt: skip
    with live_engine(clock=clock, load=load) as live:
        wait_until(lambda: live.latest().totals.finished == 4)


def test_speed_limits_steps_and_can_be_lifted():
    with live_engine() as live:
        ready(live)
        assert live.set_speed(20.0, **ME).accepted
        live.submit("x", sampling=SamplingParams(max_tokens=200, ignore_eos=True), **ME)
        wait_until(lambda: live.latest().step > 25)
        begins_s = [record.start_s for record in live.history()][:20]
        gaps_s = sorted(b - a for a, b in pairwise(begins_s))
        assert begins_s[-1] - begins_s[0] >= 0.9 * 19 / 20.0, "no more than twenty a second"
        assert gaps_s[len(gaps_s) // 2] <= 0.25, "and not many fewer"
        assert live.set_speed(None, **ME).accepted
        wait_until(lambda: live.latest().state == "idle")
        with pytest.raises(ControlRefused, match="the speed is 0"):
            live.set_speed(0, **ME)
