"""Fault 26: a request cancelled in the queue is still admitted and runs its whole prefill."""

from __future__ import annotations

import pytest

from core.request import FinishReason, RequestStatus
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def test_a_waiting_one_computes_nothing() -> None:
    driver = Driver(create_scheduler(max_num_seqs=1))
    r2 = create_request("R2", 40)
    driver.add(create_request("long", 4, 50), r2)
    driver.steps(2)
    driver.abort("R2")
    outs = driver.run()
    assert not any("R2" in out.request_ids for out in outs)
    assert (r2.status, r2.finish_reason, r2.num_computed_tokens) == (RequestStatus.CANCELLED, FinishReason.CANCELLED, 0)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preempted_one_is_not_resumed(mode: str) -> None:
    driver = Driver(
        create_scheduler(num_blocks=6, block_size=4, preemption_mode=mode, num_swap_blocks=8),
    )
    driver.add(create_request("A", 8, 12), create_request("B", 8, 12))
    while not driver.scheduler.preempted:
        driver.step()
    (b,) = driver.scheduler.preempted
    driver.abort(b.request_id)
    outs = driver.run()
    assert not any(b.request_id in (*out.request_ids, *out.resumed) for out in outs)
    assert b.status is RequestStatus.CANCELLED
    assert b.preempted_spans_s[-1][1] == b.finished_time_s
    driver.scheduler.add_request(create_request("after", 4, 1))
    driver.run()
    assert driver.scheduler.kv.counts().swap_used == 0


def test_a_decoding_one_yields_no_further_token() -> None:
    driver = Driver(create_scheduler())
    request = create_request("R", 4, 50)
    driver.add(request)
    driver.steps(4)
    tokens = request.num_output_tokens
    event = driver.abort("R")
    driver.steps(2)
    assert request.num_output_tokens == tokens
    assert (event.kind, event.finish_reason) == ("cancelled", FinishReason.CANCELLED)
    assert "R" in driver.outputs[-2].released_ids


def test_a_prompt_under_way_gives_its_blocks_back() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, max_num_batched_tokens=8))
    driver.add(create_request("R", 40, 5))
    driver.steps(2)
    driver.abort("R")
    counts = driver.scheduler.kv.counts()
    assert counts.live == 0


def test_all_at_once_leaves_every_gauge_at_zero() -> None:
    driver = Driver(create_scheduler(num_blocks=64, block_size=4, max_num_seqs=20))
    for number in range(25):
        driver.add(create_request(f"r{number}", 6, 9, tenant=f"t{number % 3}"))
    driver.steps(2)
    for rid in list(driver.scheduler.requests):
        driver.abort(rid)
    scheduler = driver.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, len(scheduler.preempted), scheduler.kv.counts().live) == (0, 0, 0, 0)
    assert all((t.running, t.waiting, t.live_blocks) == (0, 0, 0) for t in scheduler.tenants())
