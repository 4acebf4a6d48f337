"""Fault 13: with prefix caching off, finished chunks are not recorded and computed again into new blocks."""

from __future__ import annotations

import pytest

from tests.scheduler_helpers import Driver, create_request, create_scheduler


def _tokens(budget: int, *, caching: bool, of_request: bool) -> tuple[list[int], list[tuple[int, int]], int]:
    driver = Driver(create_scheduler(block_size=4, caching=caching, max_num_batched_tokens=budget))
    request = create_request("R", 40, 4, use_prefix_cache=of_request)
    driver.add(request)
    prefill: list[tuple[int, int]] = []
    most = 0
    while driver.scheduler.has_work():
        out = driver.step()
        prefill += [
            (s, n) for s, n, p in zip(out.num_computed_tokens, out.num_scheduled_tokens, out.is_prefill, strict=True) if p
        ]
        most = max(most, len(driver.scheduler.kv.block_ids("R")))
    return request.output_token_ids, prefill, most


@pytest.mark.parametrize(("caching", "of_request"), [(False, True), (True, False), (False, False)])
def test_five_chunks_and_no_block_too_many(caching: bool, of_request: bool) -> None:
    tokens, prefill, most = _tokens(8, caching=caching, of_request=of_request)
    assert prefill == [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8)]
    assert most == 11
    assert tokens == _tokens(512, caching=caching, of_request=of_request)[0]


@pytest.mark.parametrize("threshold", [None, 3, 8])
def test_a_chunk_threshold_changes_the_chunks_and_not_the_tokens(threshold: int | None) -> None:
    driver = Driver(create_scheduler(block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=threshold))
    request = create_request("R", 40, 4)
    driver.add(request)
    outs = driver.run()
    assert max(max(out.num_scheduled_tokens, default=0) for out in outs) == (threshold or 16)
    assert request.output_token_ids == _tokens(512, caching=True, of_request=True)[0]
