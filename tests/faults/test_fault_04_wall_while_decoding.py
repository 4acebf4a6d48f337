"""Fault 4: prompt fits, prompt plus output does not; the lone request evicts itself without end."""

from __future__ import annotations

import pytest

from core.request import FinishReason
from tests.scheduler_helpers import Driver, create_request, create_scheduler


@pytest.mark.parametrize(("num_blocks", "prompt", "limit", "tokens"), [(8, 28, 8, 5), (2, 8, 2, 1), (8, 28, 5, 5)])
@pytest.mark.parametrize("batch", ["chunked", "prefill_first", "separate", "whole_prompts"])
def test_ends_with_the_tokens_that_fit(num_blocks: int, prompt: int, limit: int, tokens: int, batch: str) -> None:
    driver = Driver(create_scheduler(num_blocks=num_blocks, block_size=4, batch_policy=batch))
    request = create_request("R", prompt, max_tokens=limit)
    driver.add(request)
    driver.run(max_steps=200)
    assert request.num_output_tokens == tokens
    assert request.finish_reason is (FinishReason.LENGTH if tokens == limit else FinishReason.CAPACITY)
    assert request.num_preemptions == 0
    after = create_request("after", 4)
    driver.add(after)
    driver.run(max_steps=50)
    assert after.finish_reason is FinishReason.LENGTH


def test_the_end_names_need_and_capacity() -> None:
    driver = Driver(create_scheduler(num_blocks=2, block_size=4))
    driver.add(create_request("R", 8, max_tokens=2))
    driver.run()
    (end,) = [e for e in driver.events if e.kind == "finished"]
    assert "needs 3 blocks, the pool has 2" in end.message


def test_company_is_not_evicted_in_vain_for_a_request_that_cannot_grow() -> None:
    driver = Driver(create_scheduler(num_blocks=4, block_size=4, max_model_len=64))
    first, second = create_request("A", 9, max_tokens=30), create_request("B", 3, max_tokens=1)
    driver.add(first, second)
    driver.run(max_steps=200)
    assert first.finish_reason is FinishReason.CAPACITY
    assert first.num_output_tokens == 16 - 9 + 1
    assert second.finish_reason is FinishReason.LENGTH
