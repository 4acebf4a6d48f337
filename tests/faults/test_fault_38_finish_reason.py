"""Fault 38: the reason is guessed from the count, a stop at the last allowed token reads as length, counts are one short."""

from __future__ import annotations

import pytest

from core.request import FinishReason, SamplingParams
from tests.engine_cases import EOS, scripted_engine, texts_of, tokens_of

A, B, C = ord("A"), ord("B"), ord("C")
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

CASES = {
    "end token as the last allowed token": ([A, A, A, A, EOS], {"max_tokens": 5}, STOP, 5, "AAAA"),
    "stop text done at the last allowed token": ([A, A, A, B, C], {"max_tokens": 5, "stop": ("BC",)}, STOP, 5, "AAA"),
    "neither": ([A] * 9, {"max_tokens": 5}, LENGTH, 5, "AAAAA"),
    "limit 1": ([A] * 9, {"max_tokens": 1}, LENGTH, 1, "A"),
    "end token first": ([EOS, A, A], {"max_tokens": 5}, STOP, 1, ""),
    "end token ignored": ([A, EOS, A, A, A, A], {"max_tokens": 5, "ignore_eos": True}, LENGTH, 5, "AAAA"),
    "stop token": ([A, C, A], {"max_tokens": 5, "stop_token_ids": (C,)}, STOP, 2, "A"),
    "stop text at once": ([B, C, A], {"max_tokens": 5, "stop": ("B",)}, STOP, 1, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_reason_counts_and_text(case: str) -> None:
    script, fields, reason, count, text = CASES[case]
    engine = scripted_engine({"a": script})
    engine.add_request("prompt", SamplingParams(**fields), request_id="a")
    events = engine.run_until_idle()
    assert events[-1].kind == "finished"
    assert events[-1].finish_reason is reason
    assert tokens_of(events)["a"] == script[:count]
    assert texts_of(events)["a"] == text
    row = engine.snapshot().ended[0]
    assert (row.finish_reason, row.output_tokens, row.text_tail) == (reason.value, count, text)
    record = engine.snapshot().recent_requests[0]
    assert (record.finish_reason, record.output_tokens) == (reason.value, count)
    totals = engine.snapshot().totals
    assert (totals.output_tokens, totals.finished) == (count, 1)
    assert sum(r.output_tokens for r in engine.records) == count


def test_min_tokens_holds_back_the_end() -> None:
    engine = scripted_engine({"a": [A, EOS, A, EOS]})
    engine.add_request("prompt", SamplingParams(max_tokens=9, min_tokens=3), request_id="a")
    events = engine.run_until_idle()
    assert len(tokens_of(events)["a"]) >= 3
    assert events[-1].finish_reason is STOP
