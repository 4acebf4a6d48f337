"""Fault 8: ordering by longest cached prefix lets a stream of warm requests overtake a cold one without bound."""

from __future__ import annotations

import pytest

from core.policies.queue_order import QUEUE_ORDERS
from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens

WARM = distinct_tokens("warm", 32)


def _wait_of_the_cold_one(policy: str, bound: int, arrivals: int = 300) -> int:
    """Admissions of others before the cold request starts."""
    driver = Driver(
        create_scheduler(num_blocks=64, block_size=4, max_num_seqs=1, queue_policy=policy, max_wait_overtakes=bound), check=False
    )
    driver.add(create_request("warmer", [*WARM, 1], 1))
    driver.run()
    driver.add(create_request("busy", 4, 2))
    driver.step()
    cold = create_request("cold", 33, 1)
    driver.add(cold)
    for number in range(arrivals):
        driver.add(create_request(f"w{number}", [*WARM, 2 + number], 1, at=driver.now))
        driver.step()
        if cold.admitted_time_s is not None:
            break
    driver.scheduler.check_invariants()
    return cold.num_overtaken if cold.admitted_time_s is not None else arrivals


@pytest.mark.parametrize("bound", [0, 1, 5, 20])
def test_the_bound_holds(bound: int) -> None:
    assert _wait_of_the_cold_one("lpm", bound) == bound


def test_pure_prefix_order_lets_it_wait_and_is_not_called_fair() -> None:
    assert _wait_of_the_cold_one("lpm", 1_000_000) >= 295
    assert not QUEUE_ORDERS[create_scheduler(queue_policy="lpm").config.queue_policy].fair


@pytest.mark.parametrize("policy", ["fcfs", "wfq"])
def test_fair_orders_start_it_next(policy: str) -> None:
    assert QUEUE_ORDERS[create_scheduler(queue_policy=policy).config.queue_policy].fair
    assert _wait_of_the_cold_one(policy, 64) == 0


def test_several_seats_at_once_do_not_break_the_bound() -> None:
    driver = Driver(create_scheduler(num_blocks=256, block_size=4, max_num_seqs=1, queue_policy="lpm", max_wait_overtakes=2))
    driver.add(create_request("warmer", [*WARM, 1], 3))
    driver.steps(2)
    cold = create_request("cold", 33, 1)
    driver.add(cold, *[create_request(f"w{n}", [*WARM, 2 + n], 1) for n in range(10)])
    driver.steps(2)
    driver.scheduler.set_config(create_scheduler(max_num_seqs=32, queue_policy="lpm", max_wait_overtakes=2).config, driver.now)
    out = driver.step()
    assert cold.num_overtaken <= 2
    assert "cold" in out.request_ids
