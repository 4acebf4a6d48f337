"""Weighted fair queueing: shares follow weights, a flood does not slow another tenant, nobody saves up service."""

from __future__ import annotations

import random
import statistics

import pytest

from core.config import TenantConfig
from core.tenant_ledger import jain_index
from tests.scheduler_helpers import Driver, create_request, create_requests, create_scheduler

FLOOD = 40


def _latencies(policy: str, *, flood: bool, num_blocks: int = 48, seats: int = 8, **knobs: object) -> list[float]:
    """End-to-end times of a light tenant's 20 requests, one each 12 steps, with or without 40 times as many from another."""
    driver = Driver(
        create_scheduler(num_blocks=num_blocks, block_size=4, max_num_seqs=seats, queue_policy=policy, **knobs), check=False
    )
    rng = random.Random(1)
    light = []
    for step in range(240):
        if step % 12 == 0:
            light.append(create_request(f"light{step}", 8, 6, at=driver.now, tenant="light"))
            driver.add(light[-1])
            if flood:
                heavy = [(f"heavy{step}-{n}", rng.randint(4, 12), rng.randint(4, 12)) for n in range(FLOOD)]
                driver.add(*[create_request(rid, p, o, at=driver.now, tenant="heavy") for rid, p, o in heavy])
        driver.step()
        driver.scheduler.check_invariants()
    steps = 0
    while not all(r.is_finished for r in light):
        driver.step()
        steps += 1
        assert steps < 20_000
    return [r.finished_time_s - r.arrival_time_s for r in light]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize(("num_blocks", "seats"), [(48, 8), (24, 32)])
def test_a_flood_of_forty_to_one_does_not_slow_the_other(mode: str, num_blocks: int, seats: int) -> None:
    shape = {"num_blocks": num_blocks, "seats": seats, "preemption_mode": mode, "num_swap_blocks": 64}
    alone = _latencies("wfq", flood=False, **shape)
    beside = _latencies("wfq", flood=True, **shape)
    assert statistics.fmean(beside) <= statistics.fmean(alone) * 1.5
    assert max(beside) <= 2 * max(alone) + 2


def test_the_same_flood_ruins_it_under_fcfs() -> None:
    assert statistics.fmean(_latencies("fcfs", flood=True)) > 10 * statistics.fmean(_latencies("fcfs", flood=False))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0), (1.0, 8.0)])
def test_service_follows_the_weights_while_both_are_backlogged(weights: tuple[float, float]) -> None:
    tenants = (TenantConfig("a", weight=weights[0]), TenantConfig("b", weight=weights[1]))
    driver = Driver(
        create_scheduler(num_blocks=64, block_size=4, max_num_seqs=9, queue_policy="wfq", tenants=tenants), check=False
    )
    for tenant in "ab":
        driver.add(*create_requests(400, 6, 8, prefix=tenant, tenant=tenant))
    driver.steps(200)
    served = {t.name: t.served_tokens for t in driver.scheduler.tenants()}
    assert served["b"] / served["a"] == pytest.approx(weights[1] / weights[0], rel=0.15)
    index = jain_index([served["a"] / weights[0], served["b"] / weights[1]])
    assert index is not None
    assert index > 0.99


def test_a_tenant_that_was_idle_has_saved_up_nothing() -> None:
    driver = Driver(create_scheduler(num_blocks=64, block_size=4, max_num_seqs=4, queue_policy="wfq"), check=False)
    driver.add(*create_requests(300, 4, 8, prefix="a", tenant="a"))
    driver.steps(150)
    driver.add(*create_requests(300, 4, 8, prefix="b", tenant="b"))
    before = {t.name: t.served_tokens for t in driver.scheduler.tenants()}
    driver.steps(150)
    after = {t.name: t.served_tokens for t in driver.scheduler.tenants()}
    gained = {name: after[name] - before.get(name, 0) for name in after}
    assert gained["b"] / gained["a"] == pytest.approx(1.0, rel=0.15)


def test_fair_share_takes_back_no_more_than_the_share() -> None:
    driver = Driver(create_scheduler(num_blocks=64, block_size=4, max_num_seqs=6, queue_policy="wfq"))
    driver.add(*create_requests(12, 4, 60, prefix="a", tenant="a"))
    driver.steps(3)
    driver.add(*create_requests(12, 4, 60, prefix="b", tenant="b"))
    outs = driver.steps(12)
    records = [p for out in outs for p in out.preemptions]
    assert len(records) == 3
    assert all(p.reason == "fair share" and p.victim.startswith("a") and p.beneficiary.startswith("b") for p in records)
    running = {t.name: t.running for t in driver.scheduler.tenants()}
    assert running == {"a": 3, "b": 3}


def test_recomputed_tokens_are_not_charged_twice() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, queue_policy="wfq", caching=False))
    requests = create_requests(8, 6, 12, tenant="a")
    driver.add(*requests)
    driver.run()
    assert driver.scheduler.counters.recomputed_tokens > 0
    (tenant,) = driver.scheduler.tenants()
    assert tenant.served_tokens == sum(r.num_tokens - 1 for r in requests), "the last token of each is never run"


def test_one_huge_request_is_not_starved_by_many_small_ones() -> None:
    driver = Driver(create_scheduler(num_blocks=24, block_size=4, max_num_seqs=16, queue_policy="wfq"), check=False)
    huge = create_request("huge", 60, 20, tenant="a")
    driver.add(huge)
    for step in range(400):
        driver.add(create_request(f"s{step}", 4, 4, at=driver.now, tenant="b"))
        driver.step()
        if huge.is_finished:
            break
    driver.scheduler.check_invariants()
    assert huge.num_output_tokens == 20


def test_jain_index() -> None:
    assert jain_index([]) is None
    assert jain_index([0.0, 0.0]) is None
    assert jain_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
