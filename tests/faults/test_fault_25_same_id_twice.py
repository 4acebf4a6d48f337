"""Fault 25: two live requests with one id corrupt state; a reused id is killed by the cancel of the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core.errors import ExecutorError, RefusalReason, RequestRefused, UnknownRequest
from core.request import FinishReason, SamplingParams
from pages.parts import engine_access
from tests.engine_cases import GREEDY, scripted_engine, tokens_of
from tests.fake_live import FakeLive


def test_a_live_id_is_refused_with_a_message() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2, 3], GREEDY, request_id="7")
    for _ in range(2):  # while it waits, and while it runs
        with pytest.raises(RequestRefused, match="7") as refusal:
            engine.add_request([4, 5], GREEDY, request_id="7")
        assert refusal.value.reason is RefusalReason.DUPLICATE_ID
        engine.step()
    assert len(tokens_of(engine.run_until_idle())["7"]) >= GREEDY.max_tokens - 2
    totals = engine.snapshot().totals
    assert (totals.submitted, totals.finished, totals.refused) == (3, 1, 2)


def test_an_id_may_be_used_again_in_the_step_of_its_cancel() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2, 3], GREEDY, request_id="7")
    engine.step()
    engine.cancel("7")
    engine.add_request([9, 8, 7, 6, 5], GREEDY, request_id="7")
    events = engine.run_until_idle()
    assert [e.kind for e in events if e.kind in ("cancelled", "finished")] == ["cancelled", "finished"]
    after = events[[e.kind for e in events].index("cancelled") + 1 :]
    assert len(tokens_of(after)["7"]) == GREEDY.max_tokens
    totals = engine.snapshot().totals
    assert (totals.submitted, totals.finished, totals.cancelled) == (2, 1, 1)
    assert engine.snapshot().pool.live == 0


def test_the_id_of_one_that_a_held_decision_ended_is_refused_and_its_answer_keeps_its_text() -> None:
    engine = scripted_engine({"7": list(b"one STOLEN WORD")}, admission_moment="between_launches")
    stops = SamplingParams(max_tokens=40, stop=("STOP",), ignore_eos=True)
    engine.add_request([1, 2, 3], stops, request_id="7", deadline_s=engine.clock.now() + 6.5)
    engine.add_request([1, 2, 4], GREEDY, request_id="8")
    refusals: list[str] = []

    def submit_again() -> None:
        if "7" not in engine.scheduler.requests and not refusals:
            with pytest.raises(RequestRefused, match="ends in this very step") as refusal:
                engine.add_request([9, 8, 7, 6, 5], GREEDY, request_id="7")
            refusals.append(refusal.value.reason)

    engine.between_launches = submit_again
    events = []
    while not refusals:
        events += engine.step()
    engine.add_request([9, 8, 7, 6, 5], GREEDY, request_id="7")
    first = [e for e in events if e.request_id == "7" and e.kind != "refused"]
    assert first[-1].finish_reason is FinishReason.DEADLINE
    assert first[-1].text, "what might have become the stop string comes with the end"
    assert "".join(e.text for e in first) == b"one STOLEN WORD"[: len(tokens_of(first)["7"])].decode()
    rest = [e for e in engine.run_until_idle() if e.request_id == "7"]
    assert [e.finish_reason for e in rest if e.finish_reason] == [FinishReason.LENGTH]
    assert len(tokens_of(rest)["7"]) == GREEDY.max_tokens
    totals = engine.snapshot().totals
    assert (refusals, totals.finished, totals.cancelled, totals.refused) == ([RefusalReason.DUPLICATE_ID], 2, 1, 1)


def test_an_end_in_a_step_that_was_lost_is_told_at_once() -> None:
    engine = scripted_engine(failures={3: ExecutorError("out of order")})
    engine.add_request([1, 2, 3], GREEDY, request_id="7", deadline_s=engine.clock.now() + 2.0)
    engine.add_request([1, 2, 4], GREEDY, request_id="8")
    events = [event for _ in range(3) for event in engine.step()]
    assert engine.failed
    assert [e.finish_reason for e in events if e.request_id == "7" and e.finish_reason] == [FinishReason.DEADLINE]
    engine.recover()
    engine.add_request([9, 8, 7, 6, 5], GREEDY, request_id="7")
    rest = [e for e in engine.run_until_idle() if e.request_id == "7"]
    assert [e.finish_reason for e in rest if e.finish_reason] == [FinishReason.LENGTH]


def test_ids_given_by_the_engine_never_meet_those_of_callers() -> None:
    engine = scripted_engine()
    engine.add_request([1], GREEDY, request_id="r-000002")
    assert [engine.add_request([1], GREEDY) for _ in range(3)] == ["r-000001", "r-000003", "r-000004"]
    engine.run_until_idle()


def test_an_ended_id_cannot_be_cancelled_and_nothing_falls_below_zero() -> None:
    engine = scripted_engine()
    engine.add_request([1], GREEDY, request_id="7")
    engine.run_until_idle()
    with pytest.raises(UnknownRequest, match="7"):
        engine.cancel("7")
    totals = engine.snapshot().totals
    assert (totals.submitted, totals.finished, totals.cancelled) == (1, 1, 0)


def test_submit_pressed_twice_in_the_page_makes_two_requests_of_different_ids() -> None:
    fake = FakeLive()
    engine_access.install(fake)
    try:
        at = AppTest.from_file(str(Path(__file__).resolve().parents[2] / "pages" / "prompt.py"), default_timeout=120).run()
        at.text_area[0].set_value("hello")
        for _ in range(2):
            next(b for b in at.button if b.label == "Send").click().run()
            assert not at.exception
        assert [name for name, _ in fake.commands].count("submit") == len(fake.streams)
        assert 1 <= len(fake.streams) <= 2
    finally:
        engine_access.install(None)
