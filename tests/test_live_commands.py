"""The live engine's thread: commands at step boundaries, and nothing accepted is lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from live_cases import (
    FOREVER,
    ME,
    PATIENCE_S,
    SHORT,
    SLOW_STEP_S,
    Gate,
    finished,
    live_engine,
    ready,
    settled,
    wait_until,
)

from core.clock import WallClock
from core.commands import Outcome
from core.control import LOCAL, LiveLimits
from core.errors import ControlRefused, UnknownRequest
from core.request import SamplingParams
from core.workload import LengthSpec, LoadSpec


def test_a_prompt_is_answered_and_its_stream_is_the_whole_answer():
    with live_engine() as live:
        ready(live)
        result = live.submit("hello", sampling=SHORT, **ME)
        assert result.accepted, result.message
        stream = live.stream(result.value)
        assert finished(live, result.value) == "length"
        assert stream.num_tokens == 4
        pieces, cursor = stream.since(0)
        assert "".join(p.text for p in pieces) == stream.text
        assert len(stream.text) == 4
        assert stream.since(cursor) == ([], cursor)
        wait_until(lambda: live.latest().totals.finished == 1)
        story = live.story(result.value)
        assert story is not None
        assert next(e.kind for e in story.events) == "submitted"
        assert live.requests()[0].request_id == result.value
        assert live.history()[-1].output_tokens == 1
        assert live.history(live.history()[-1].step) == ()


def test_chat_and_token_ids_are_prompts_too_and_a_prompt_comes_once():
    with live_engine() as live:
        ready(live)
        chat = live.submit(chat=[{"role": "user", "content": "hi"}], sampling=SHORT, **ME)
        ids = live.submit(token_ids=[5, 6, 7], sampling=SHORT, tenant="b", priority=2, **ME)
        assert finished(live, chat.value) == finished(live, ids.value) == "length"
        wait_until(lambda: len(live.latest().ended) == 2)
        rows = {row.request_id: row for row in live.latest().ended}
        assert rows[chat.value].prompt_tokens == len(b"user: hi\nassistant:")
        assert (rows[ids.value].tenant, rows[ids.value].priority, rows[ids.value].source) == ("b", 2, "prompt")
        with pytest.raises(ControlRefused, match="found 2 of them"):
            live.submit("x", token_ids=[1], **ME)
        with pytest.raises(ControlRefused, match="found 0 of them"):
            live.submit(**ME)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": ""}, "empty"),
        ({"token_ids": []}, "empty"),
        ({"token_ids": [1] * 600}, "600"),
        ({"token_ids": [999]}, "999"),
        ({"text": "x", "sampling": SamplingParams(temperature=float("nan"))}, "temperature is nan"),
        ({"text": "x", "request_id": "taken"}, "taken"),
        ({"text": "x", "tenant": ""}, "tenant"),
    ],
)
def test_a_refused_prompt_gets_its_reason_and_stops_nothing(arguments, words):
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        assert live.submit("first", request_id="taken", sampling=FOREVER, **ME).accepted
        result = live.submit(**arguments, **ME)
        assert result.outcome is Outcome.REFUSED
        assert words in result.message
        assert live.latest().state == "running"
        assert live.submit("y", sampling=SHORT, **ME).accepted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "x" * 11}, "11 characters, the limit is 10"),
        ({"token_ids": [1] * 9}, "9 tokens, the limit is 8"),
        ({"text": "x", "sampling": SamplingParams(max_tokens=0)}, "max_tokens is 0"),
        ({"text": "x", "sampling": SamplingParams(max_tokens=7)}, "max_tokens is 7; .* from 1 to 6"),
    ],
)
def test_limits_hold_whatever_a_widget_allows(arguments, words):
    limits = LiveLimits(max_prompt_chars=10, max_prompt_tokens=8, max_output_tokens=6)
    with live_engine(limits=limits) as live:
        ready(live)
        with pytest.raises(ControlRefused, match=words):
            live.submit(**arguments, **ME)


def test_queue_and_answers_are_bounded():
    with live_engine(knobs={"max_num_seqs": 1}, limits=LiveLimits(max_waiting=3, max_streams=100), paused=True) as live:
        ready(live)
        results = [live.submit("x", sampling=FOREVER, **ME) for _ in range(6)]
        assert [r.accepted for r in results] == [True] * 3 + [False] * 3, "paused: nothing leaves the queue"
        assert "wait already, the limit is 3" in results[-1].message
        assert live.step_once(**ME).value == 1
        assert [live.submit("x", sampling=FOREVER, **ME).accepted for _ in range(2)] == [True, False], "one has a seat now"
    with live_engine(limits=LiveLimits(max_streams=2), paused=True) as live:
        ready(live)
        for _ in range(2):
            assert live.submit("x", sampling=FOREVER, **ME).accepted
        assert "2 answers are being written" in live.submit("x", sampling=FOREVER, **ME).message


def test_many_threads_submit_and_no_request_is_lost():
    with live_engine(knobs={"num_blocks": 256}) as live:
        ready(live)

        def send(number: int) -> str:
            result = live.submit(f"prompt {number}", sampling=SHORT, **ME)
            assert result.accepted, result.message
            return result.value

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(send, range(96)))
        assert len(set(ids)) == 96
        for request_id in ids:
            assert finished(live, request_id) == "length"
            assert live.stream(request_id).num_tokens == 4
        totals = settled(live).totals
        assert (totals.submitted, totals.finished, totals.output_tokens) == (96, 96, 96 * 4)


def test_pause_holds_at_a_boundary_step_runs_exactly_one_start_goes_on():
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        live.submit("x", sampling=FOREVER, **ME)
        wait_until(lambda: live.latest().step > 5)
        assert live.pause(**ME).accepted
        wait_until(lambda: live.latest().state == "paused")
        held = live.latest()
        time.sleep(0.4)
        assert live.latest().step == held.step
        assert live.latest().time_s == pytest.approx(held.time_s), "nothing ages while it is held"
        for expected in (1, 2, 3):
            assert live.step_once(**ME).value == 1
            assert live.latest().step == held.step + expected
            assert live.latest().state == "paused"
        assert live.step_once(steps=5, **ME).value == 5
        assert live.latest().step == held.step + 8
        assert live.start(**ME).accepted
        wait_until(lambda: live.latest().step > held.step + 20)
        assert live.latest().state == "running"


def test_single_steps_bring_arrivals_forward_and_a_pause_does_not_let_them_pile_up():
    load = LoadSpec(process="constant", rate_per_s=50.0, prompt_tokens=LengthSpec.fixed(4), output_tokens=LengthSpec.fixed(2))
    with live_engine(load=load, paused=True) as live:
        held_s = ready(live).latest().time_s
        time.sleep(0.5)
        assert live.latest().totals.submitted == 0
        assert live.latest().time_s == held_s
        assert live.step_once(**ME).value == 1
        assert live.latest().totals.submitted == 1, "the next arrival came at once, and only that one"
        live.start(**ME)
        wait_until(lambda: live.latest().totals.submitted >= 3)
        now = live.latest()
        assert now.totals.submitted <= 50.0 * (now.time_s - held_s) + 2, "the time of the pause does not count"


def test_nothing_to_run_is_said_and_steps_are_bounded():
    with live_engine() as live:
        ready(live)
        result = live.step_once(**ME)
        assert (result.value, result.message) == (0, "nothing to run")
        with pytest.raises(ControlRefused, match="steps is 1000"):
            live.step_once(steps=1000, **ME)


def test_cancel_ends_a_request_at_once_running_waiting_or_paused():
    gate = Gate()
    with live_engine(gate=gate, knobs={"max_num_seqs": 1}) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        running, waiting = (live.submit("x", sampling=FOREVER, **ME).value for _ in range(2))
        wait_until(lambda: live.latest().num_running == 1)
        live.pause(**ME)
        assert live.cancel(waiting, **ME).accepted
        assert live.stream(waiting).end.reason == "cancelled"
        assert live.cancel(running, **ME).accepted
        assert live.stream(running).end.reason == "cancelled"
        wait_until(lambda: (live.latest().num_running, live.latest().num_waiting) == (0, 0))
        assert live.latest().pool.live == 0
        assert "running" in live.cancel(running, **ME).message or not live.cancel(running, **ME).accepted
        result = live.cancel("nobody", **ME)
        assert (result.outcome, "nobody" in result.message) == (Outcome.REFUSED, True)


def test_gauges_are_zero_two_seconds_after_everything_was_cancelled():
    gate = Gate()
    with live_engine(gate=gate, knobs={"max_num_seqs": 4}) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        ids = [live.submit("x", sampling=FOREVER, **ME).value for _ in range(8)]
        wait_until(lambda: live.latest().num_running == 4 and live.latest().kpis.output_tokens_per_s > 0)
        for request_id in ids:
            live.cancel(request_id, **ME)
        cancelled_s = WallClock().now()
        wait_until(lambda: live.latest().wall_time_s >= cancelled_s + 2.0, what="a picture of two seconds later")
        snapshot = live.latest()
        assert snapshot.state == "idle"
        assert (snapshot.num_running, snapshot.num_waiting, snapshot.pool.live) == (0, 0, 0)
        assert (snapshot.kpis.output_tokens_per_s, snapshot.kpis.requests_per_s) == (0, 0)
        ages_s = []
        for _ in range(40):
            time.sleep(0.025)
            ages_s.append(WallClock().now() - live.latest().wall_time_s)
        assert min(ages_s) < 0.5, "the picture is of now, not of the last step"


def test_knobs_change_together_or_not_at_all():
    with live_engine() as live:
        ready(live)
        assert live.set_scheduler(max_num_seqs=3, queue_policy="priority", **ME).accepted
        assert live.latest().config.scheduler.max_num_seqs == 3, "the answer comes after the picture"
        for bad, words in [
            (lambda: live.set_scheduler(max_num_seqs=0, **ME), "max_num_seqs is 0"),
            (lambda: live.set_scheduler(speed=1, **ME), "unknown knob speed"),
            (lambda: live.set_cache(block_size=0, **ME), "block_size is 0"),
            (lambda: live.set_scheduler(preemption_mode="swap", **ME), "num_swap_blocks is 0"),
        ]:
            result = bad()
            assert result.outcome is Outcome.REFUSED
            assert words in result.message
        both = live.configure(scheduler={"preemption_mode": "swap"}, cache={"num_swap_blocks": 8, "num_blocks": 32}, **ME)
        assert both.accepted, both.message
        back = live.configure(scheduler={"preemption_mode": "recompute"}, cache={"num_swap_blocks": 0}, **ME)
        assert back.accepted, back.message
        assert live.config.cache.num_swap_blocks == 0
        assert live.latest().pool.total == 32
        assert live.config.scheduler.max_num_seqs == 3


def test_a_smaller_pool_loses_no_running_request():
    gate = Gate()
    with live_engine(gate=gate, knobs={"num_blocks": 128}, paused=True) as live:
        ready(live)
        gate.delay_s = SLOW_STEP_S
        ids = [live.submit("some words", sampling=SamplingParams(max_tokens=40, ignore_eos=True), **ME).value for _ in range(6)]
        live.step_once(steps=3, **ME)
        assert live.latest().num_running == 6
        assert live.set_cache(num_blocks=30, **ME).accepted
        assert live.latest().num_running + live.latest().num_preempted + live.latest().num_waiting == 6
        live.start(**ME)
        for request_id in ids:
            assert finished(live, request_id) == "length"
            assert live.stream(request_id).num_tokens == 40
        assert live.latest().totals.preemptions >= 6


def test_a_defect_in_a_command_is_an_answer_and_not_the_end():
    with live_engine() as live:
        ready(live)
        result = live.submit(token_ids=[1, 2], sampling=SHORT, slo="soon", **ME)  # type: ignore[arg-type]
        assert result.outcome is Outcome.REFUSED
        assert live.is_alive
        assert finished(live, live.submit("y", sampling=SHORT, **ME).value) == "length"


def test_answers_are_kept_for_followed_requests_only():
    load = LoadSpec(process="burst", burst_size=2, prompt_tokens=LengthSpec.fixed(3), output_tokens=LengthSpec.fixed(1))
    with live_engine(load=load) as live:
        wait_until(lambda: live.latest().totals.finished == 2)
        with pytest.raises(UnknownRequest, match="no answer is kept"):
            live.stream(live.latest().ended[0].request_id)


def test_a_reader_can_wait_for_an_answer_in_its_own_thread():
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.delay_s = 0.005
        stream = live.stream(live.submit("x", sampling=SamplingParams(max_tokens=20, ignore_eos=True), **ME).value)
        text, cursor = "", 0
        while True:
            ended = stream.end is not None
            pieces, cursor = stream.since(cursor)
            text += "".join(p.text for p in pieces)
            if ended:
                break
            assert stream.wait(cursor, PATIENCE_S)
        assert text == stream.text
        assert len(text) == 20
        assert not stream.wait(cursor + 1, 0.01) or stream.end is not None


def test_a_deadline_ends_a_request():
    gate = Gate()
    with live_engine(gate=gate) as live:
        ready(live)
        gate.delay_s = 0.005
        result = live.submit("x", sampling=FOREVER, timeout_s=0.2, **ME)
        assert finished(live, result.value) == "deadline"


def test_commands_leave_a_line_on_the_audit_list():
    with live_engine() as live:
        ready(live)
        live.set_scheduler(max_num_seqs=5, **ME)
        live.set_scheduler(max_num_seqs=0, **ME)
        newest, older = live.audit()[:2]
        assert (newest.command, newest.outcome, newest.session_id) == ("configure", "refused", LOCAL)
        assert "max_num_seqs is 0" in newest.message
        assert (older.outcome, older.detail) == ("accepted", "scheduler: max_num_seqs 32 to 5")
        live.configure(scheduler=replace(live.config.scheduler, watermark=0.02), load=None, **ME)
        assert live.audit()[0].detail == "scheduler: watermark 0.01 to 0.02; load: off"
        before = live.audit()
        live.submit(token_ids=[1, 2, 3], sampling=SHORT, source="api", **ME)
        assert live.audit() == before, "requests of the API would push the changes of settings off the list"
