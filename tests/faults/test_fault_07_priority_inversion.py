"""Fault 7: a high priority waits behind low ones when the limit is seats, because preemption is only tried for memory."""

from __future__ import annotations

import pytest

from core.outputs import BoundBy
from core.request import RequestStatus
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def _two_low(**knobs: object) -> Driver:
    driver = Driver(create_scheduler(num_blocks=256, max_num_seqs=2, queue_policy="priority", **knobs))
    driver.add(create_request("low", 4, 200, priority=5), create_request("lowest", 4, 200, priority=7))
    driver.steps(3)
    return driver


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_starts_within_one_step_in_the_seat_of_the_lowest(mode: str) -> None:
    driver = _two_low(preemption_mode=mode, num_swap_blocks=64)
    high = create_request("high", 4, 5, priority=0)
    driver.add(high)
    out = driver.step()
    assert "high" in out.request_ids
    assert [(p.victim, p.beneficiary, p.reason) for p in out.preemptions] == [("lowest", "high", "priority")]
    driver.steps(10)
    assert high.is_finished
    assert driver.scheduler.requests["lowest"].status is RequestStatus.RUNNING


def test_equal_priority_never_preempts() -> None:
    driver = _two_low()
    driver.add(create_request("equal", 4, 5, priority=7))
    outs = driver.steps(20)
    assert not any(out.preemptions for out in outs)
    assert outs[0].bound_by is BoundBy.SEATS
    assert outs[0].passed_over[0].request_id == "equal"
    assert "seat" in outs[0].passed_over[0].detail


def test_without_preemption_the_decision_says_that_it_waits_for_a_seat() -> None:
    driver = _two_low(preemptive_priority=False)
    driver.add(create_request("high", 4, 5, priority=0))
    out = driver.step()
    assert not out.preemptions
    assert [(p.request_id, p.bound_by) for p in out.passed_over] == [("high", BoundBy.SEATS)]
    assert driver.scheduler.why_waiting("high") == "waits for a seat: 2 of 2 taken"


def test_memory_is_taken_from_worse_requests_only_if_that_is_enough() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4, max_num_seqs=8, queue_policy="priority"))
    driver.add(create_request("good", 16, 8, priority=0), create_request("bad", 8, 8, priority=9))
    driver.step()
    driver.add(create_request("between", 20, 2, priority=4))
    out = driver.step()
    assert not [p for p in out.preemptions if p.reason == "priority"], "5 blocks cannot be freed by taking 2"
    driver.run()


def test_ageing_lets_a_bad_number_come_first_and_protects_it_then() -> None:
    driver = Driver(create_scheduler(num_blocks=64, max_num_seqs=1, queue_policy="priority", priority_ageing_s=2.0))
    old = create_request("old", 4, 40, at=0.0, priority=9)
    driver.add(create_request("first", 4, 30, at=0.0, priority=0), old)
    number = 0
    while old.admitted_time_s is None:
        driver.step()
        if driver.now % 5 == 0:
            number += 1
            driver.add(create_request(f"n{number}", 4, 4, at=driver.now, priority=0))
        assert driver.now < 200
    driver.add(create_request("late", 4, 4, at=driver.now, priority=0))
    assert not any(p.victim == "old" for out in driver.steps(6) for p in out.preemptions)
