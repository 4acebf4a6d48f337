"""Fault 2: a prompt above the whole pool is accepted, never scheduled, and blocks the queue."""

from __future__ import annotations

import pytest

from core.errors import RefusalReason, RequestRefused
from core.request import FinishReason, RequestStatus
from tests.engine_cases import GREEDY, scripted_engine
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def test_refused_at_once_with_need_and_capacity() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4, max_model_len=64))
    big = create_request("R1", 40)
    with pytest.raises(RequestRefused, match=r"needs 10 blocks.*the pool has 8") as refused:
        driver.add(big)
    assert refused.value.reason is RefusalReason.POOL_TOO_SMALL
    assert (big.status, big.finish_reason) == (RequestStatus.REFUSED, FinishReason.REFUSED)
    small = create_request("R2", 4, max_tokens=4)
    driver.add(small)
    driver.run(max_steps=50)
    assert small.finish_reason is FinishReason.LENGTH
    assert big in driver.scheduler.pop_ended()
    totals = driver.scheduler.totals()
    assert (totals.submitted, totals.refused, totals.finished) == (2, 1, 1)


def test_the_view_shows_it_as_refused_and_not_as_waiting() -> None:
    engine = scripted_engine(num_blocks=8, block_size=4, max_model_len=64)
    with pytest.raises(RequestRefused):
        engine.add_request(range(1, 41), GREEDY, request_id="R1")
    engine.add_request([1, 2, 3, 4], GREEDY, request_id="R2")
    picture = engine.snapshot()
    assert [(row.request_id, row.status) for row in picture.ended] == [("R1", "refused")]
    assert "needs 10 blocks" in picture.ended[0].why
    assert "the pool has 8" in picture.ended[0].why
    assert [row.request_id for row in picture.waiting] == ["R2"]
    engine.run_until_idle()
    assert [(row.request_id, row.status) for row in engine.snapshot().ended] == [("R2", "finished"), ("R1", "refused")]


@pytest.mark.parametrize("prompt", [64, 65])
def test_a_prompt_at_the_models_length_is_refused_with_both_numbers(prompt: int) -> None:
    driver = Driver(create_scheduler(max_model_len=64))
    with pytest.raises(RequestRefused, match=rf"{prompt} tokens and the model's length is 64") as refused:
        driver.add(create_request("R", prompt))
    assert refused.value.reason is RefusalReason.PROMPT_TOO_LONG


def test_a_prompt_one_below_the_models_length_yields_its_one_token() -> None:
    driver = Driver(create_scheduler(max_model_len=64))
    request = create_request("R", 63, max_tokens=5)
    driver.add(request)
    driver.run()
    assert (request.num_output_tokens, request.finish_reason) == (1, FinishReason.CAPACITY)


def test_full_reservation_refuses_for_the_worst_case() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4, admission_policy="reserve"))
    with pytest.raises(RequestRefused, match=r"needs 9 blocks.*36 in all, are reserved.*the pool has 8"):
        driver.add(create_request("R", 28, max_tokens=8))
