"""Fault 47: one output token divides by zero or counts as 0; the requested length is used where the real one was shorter."""

from __future__ import annotations

import pytest

from core.request import SamplingParams
from tests.engine_cases import EOS, scripted_engine


def test_no_value_for_fewer_than_two_tokens() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=1, ignore_eos=True))
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True), request_id="none")
    engine.cancel("none")
    engine.run_until_idle()
    records = engine.snapshot().recent_requests
    assert sorted(r.output_tokens for r in records) == [0, 1]
    assert [r.tpot_s for r in records] == [None, None]
    kpis = engine.snapshot().kpis
    assert (kpis.tpot.count, kpis.tpot.p50) == (0, None)
    assert (kpis.itl.count, kpis.itl.p50) == (0, None)
    assert kpis.ttft.count == 1


def test_two_tokens_have_their_one_gap() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    engine.run_until_idle()
    record = engine.snapshot().recent_requests[0]
    assert (record.tpot_s, record.itl_s) == (1.0, (1.0,))


def test_the_tokens_that_came_count_not_those_asked_for() -> None:
    engine = scripted_engine({"a": [*range(40, 49), EOS]})
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=100), request_id="a")
    engine.run_until_idle()
    record = engine.snapshot().recent_requests[0]
    assert record.output_tokens == 10
    assert record.ttft_s is not None
    assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 9)
    assert record.tpot_s == pytest.approx(1.0)
