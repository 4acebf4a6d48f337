"""Fault 40: an output limit of 0 skips the loop and falls over; a short list of limits drops prompts in silence."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import RefusalReason, RequestRefused
from core.request import SamplingParams
from tests.engine_cases import scripted_engine


@pytest.mark.parametrize("limit", [0, -1, None])
def test_a_limit_below_one_token_is_refused_and_holds_nothing(limit: Any) -> None:
    engine = scripted_engine()
    with pytest.raises(RequestRefused, match="max_tokens") as refusal:
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=limit))
    assert refusal.value.reason is RefusalReason.BAD_SAMPLING
    assert repr(limit) in str(refusal.value)
    picture = engine.snapshot()
    assert (picture.pool.live, picture.num_waiting, picture.num_running) == (0, 0, 0)
    assert (picture.totals.submitted, picture.totals.refused) == (1, 1)
    assert picture.ended[0].status == "refused"


def test_unequal_lists_are_refused_whole() -> None:
    engine = scripted_engine()
    with pytest.raises(RequestRefused, match="3 prompts came with 2"):
        engine.add_requests([[1], [2], [3]], [SamplingParams(max_tokens=1)] * 2)
    assert not engine.has_work()
    assert engine.snapshot().totals.submitted == 0
    with pytest.raises(RequestRefused, match="2 prompts came with 3 values of request_ids"):
        engine.add_requests([[1], [2]], request_ids=["a", "b", "c"])
    assert engine.snapshot().totals.submitted == 0


def test_one_bad_prompt_takes_the_whole_list_back() -> None:
    engine = scripted_engine()
    with pytest.raises(RequestRefused):
        engine.add_requests([[1], [], [3]], SamplingParams(max_tokens=1))
    engine.run_until_idle()
    totals = engine.snapshot().totals
    assert (totals.finished, totals.cancelled, totals.refused, totals.output_tokens) == (0, 1, 1, 0)


def test_equal_lists_lose_no_request() -> None:
    engine = scripted_engine()
    limits = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 2, 3)]
    answers = engine.generate([[1], [2], [3]], limits)
    assert [len(a.token_ids) for a in answers] == [1, 2, 3]
