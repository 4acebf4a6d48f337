"""Fault 17: on resume the token count is fixed before the cache hit is found, so more is planned than there is."""

from __future__ import annotations

import pytest

from tests.scheduler_helpers import Driver, create_request, create_scheduler


def _pair(num_blocks: int, **knobs: object) -> tuple[Driver, list[list[int]]]:
    driver = Driver(create_scheduler(num_blocks=num_blocks, block_size=4, **knobs))
    requests = [create_request("A", 8, 12), create_request("B", 8, 12)]
    driver.add(*requests)
    driver.run(max_steps=200)
    return driver, [r.output_token_ids for r in requests]


@pytest.mark.parametrize("batch", ["chunked", "prefill_first", "separate", "whole_prompts"])
def test_planned_is_total_less_hits_and_at_least_one(batch: str) -> None:
    driver, tokens = _pair(6, batch_policy=batch)
    resumed = [out for out in driver.outputs if out.resumed]
    assert resumed, "B was never preempted: the pool is not small enough for this test"
    for out in resumed:
        for new in out.new_requests:
            row = out.request_ids.index(new.request_id)
            start, count = out.num_computed_tokens[row], out.num_scheduled_tokens[row]
            assert start % 4 == 0
            assert count == len(new.token_ids) - start >= 1
    assert tokens == _pair(64, batch_policy=batch)[1]


def test_a_resume_finds_its_own_blocks_again() -> None:
    driver = Driver(create_scheduler(num_blocks=32, block_size=4, max_num_seqs=1, queue_policy="priority"))
    victim = create_request("victim", 8, 12, priority=5)
    driver.add(victim)
    driver.steps(6)
    driver.add(create_request("high", 4, 2, priority=0))
    driver.step()
    assert victim.num_preemptions == 1
    known = victim.num_tokens
    driver.run()
    assert victim.num_cached_tokens == (known - 1) // 4 * 4
