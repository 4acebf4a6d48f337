"""Fault 10: the loop stops at the first request that cannot get memory, so small ones that fit wait behind it."""

from __future__ import annotations

import pytest

from core.outputs import BoundBy
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def _eight_blocks_in_use(**knobs: object) -> Driver:
    driver = Driver(
        create_scheduler(num_blocks=16, block_size=4, max_num_batched_tokens=256, admission_policy="reserve", **knobs)
    )
    driver.add(create_request("R0", 4, 28))
    driver.step()
    assert len(driver.scheduler.kv.block_ids("R0")) == 8
    return driver


def test_strict_order_waits_and_names_the_head_and_what_is_missing() -> None:
    driver = _eight_blocks_in_use()
    driver.add(create_request("R1", 40, 8), create_request("R2", 2, 2))
    out = driver.step()
    assert out.request_ids == ("R0",)
    (head,) = out.passed_over
    assert (head.request_id, head.bound_by) == ("R1", BoundBy.MEMORY)
    assert head.detail == "needs 12 blocks, 8 available: 4 missing"
    assert (out.bound_by, out.full_batch) == (BoundBy.MEMORY, True)


def test_lookahead_runs_the_small_one_at_once() -> None:
    driver = _eight_blocks_in_use(lookahead=4)
    r1 = create_request("R1", 40, 8)
    driver.add(r1, create_request("R2", 2, 2))
    out = driver.step()
    assert out.admitted == ("R2",)
    assert r1.num_overtaken == 1
    assert out.passed_over[0].request_id == "R1"


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_head_is_overtaken_a_stated_number_of_times(most: int) -> None:
    driver = _eight_blocks_in_use(lookahead=8, max_overtakes=most)
    r1 = create_request("R1", 40, 8)
    driver.add(r1)
    for number in range(30):
        driver.add(create_request(f"s{number}", 2, 2))
        driver.step()
    assert r1.num_overtaken == most
    driver.run()
    assert r1.num_overtaken == most


def test_lookahead_ends_where_it_should() -> None:
    driver = _eight_blocks_in_use(lookahead=1)
    driver.add(create_request("R1", 40, 8), create_request("R2", 40, 8), create_request("R3", 2, 2))
    assert driver.step().admitted == ()
