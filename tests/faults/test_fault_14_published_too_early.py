"""Fault 14: blocks enter the prefix index when allocated, not when computed; a hit on a free block wipes its entry."""

from __future__ import annotations

from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens

PROMPT = distinct_tokens("shared", 12)


def _cold() -> list[int]:
    driver = Driver(create_scheduler(block_size=4, max_num_batched_tokens=6))
    request = create_request("B", PROMPT, 4)
    driver.add(request)
    driver.run()
    return request.output_token_ids


def test_only_whole_computed_blocks_are_reused() -> None:
    driver = Driver(create_scheduler(block_size=4, max_num_batched_tokens=6))
    driver.add(create_request("A", PROMPT, 4))
    driver.step()
    b = create_request("B", PROMPT, 4)
    driver.add(b)
    driver.abort("A")
    driver.step()
    assert b.num_cached_tokens == 4, "one of A's blocks was full after its first chunk of 6 tokens"
    driver.run()
    assert b.output_token_ids == _cold()


def test_two_in_one_step_share_nothing_that_is_not_computed() -> None:
    driver = Driver(create_scheduler(block_size=4))
    a, b = create_request("A", PROMPT, 4), create_request("B", PROMPT, 4)
    driver.add(a, b)
    driver.run()
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 0)
    assert b.output_token_ids == _cold()


def test_a_hit_on_a_free_block_keeps_the_entry_for_a_third() -> None:
    driver = Driver(create_scheduler(block_size=4))
    hits = []
    for name in ("A", "B", "C"):
        request = create_request(name, PROMPT, 4)
        driver.add(request)
        driver.run()
        hits.append(request.num_cached_tokens)
    assert hits == [0, 8, 8], "the last token is always computed, so at most 2 of 3 blocks are hits"


def test_a_hit_shares_the_blocks_of_a_running_request() -> None:
    driver = Driver(create_scheduler(block_size=4))
    driver.add(create_request("A", PROMPT, 20))
    driver.steps(3)
    driver.add(create_request("B", PROMPT, 4))
    driver.step()
    kv = driver.scheduler.kv
    assert kv.block_ids("B")[:2] == kv.block_ids("A")[:2]
    assert [kv.pool.ref_count(b) for b in kv.block_ids("B")] == [2, 2, 1]
    driver.abort("A")
    driver.run()
