"""Preemption by swap: real copies in bounded host memory, nothing recomputed, recompute where it is full."""

from __future__ import annotations

import pytest

from core.config import CacheConfig, SchedulerConfig, check_pair
from core.errors import ConfigError, InvariantError
from core.swap_space import SwapSpace
from tests.scheduler_helpers import Driver, create_requests, create_scheduler


def _run(num_blocks: int, mode: str, swap: int, count: int = 6, **knobs: object) -> tuple[Driver, list[list[int]]]:
    driver = Driver(create_scheduler(num_blocks=num_blocks, block_size=4, preemption_mode=mode, num_swap_blocks=swap, **knobs))
    requests = create_requests(count, 7, 14)
    driver.add(*requests)
    driver.run(max_steps=1000)
    return driver, [r.output_token_ids for r in requests]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("swap", [3, 8, 64])
def test_tokens_are_those_of_an_undisturbed_run(swap: int, caching: bool) -> None:
    driver, tokens = _run(12, "swap", swap, caching=caching)
    assert driver.scheduler.counters.preemptions > 0
    assert tokens == _run(512, "recompute", 0, caching=caching)[1]


def test_a_swapped_request_recomputes_nothing() -> None:
    driver, _ = _run(12, "swap", 64, caching=False)
    assert driver.scheduler.counters.recomputed_tokens == 0
    records = [p for out in driver.outputs for p in out.preemptions]
    assert all(p.tokens_lost == 0 and p.bytes_swapped > 0 for p in records)
    copies = sum(len(out.swap_out) for out in driver.outputs)
    assert sum(p.bytes_swapped for p in records) == copies * 16 * 4
    assert copies == sum(len(out.swap_in) for out in driver.outputs) > 0
    resumed = [new for out in driver.outputs for new in out.new_requests if new.resumed_by_swap]
    assert len(resumed) == len(records)


def test_a_full_swap_space_falls_back_to_recompute() -> None:
    driver, _ = _run(12, "swap", 2)
    records = [p for out in driver.outputs for p in out.preemptions]
    assert any(p.tokens_lost for p in records)
    assert driver.scheduler.kv.counts().swap_used <= 2


def test_host_blocks_are_never_above_their_number_and_all_come_back() -> None:
    driver = Driver(create_scheduler(num_blocks=10, block_size=2, preemption_mode="swap", num_swap_blocks=7))
    driver.add(*create_requests(8, 5, 9))
    most = 0
    while driver.scheduler.has_work():
        driver.step()
        counts = driver.scheduler.kv.counts()
        most = max(most, counts.swap_used)
        assert counts.swap_used <= counts.swap_total == 7
    assert most > 0
    driver.step()
    assert driver.scheduler.kv.counts().swap_used == 0


def test_a_host_block_read_in_a_step_is_not_given_out_in_it() -> None:
    space = SwapSpace(2)
    assert space.take("a", 2) is not None
    space.give_back("a")
    assert space.take("b", 1) is None
    space.settle()
    assert space.take("b", 2) is not None
    space.check()


def test_swapping_one_request_twice_is_a_defect() -> None:
    space = SwapSpace(4)
    space.take("a", 1)
    with pytest.raises(InvariantError, match="twice"):
        space.take("a", 1)


def test_a_lost_executor_turns_swapped_requests_into_recomputes() -> None:
    driver = Driver(create_scheduler(num_blocks=10, block_size=4, preemption_mode="swap", num_swap_blocks=32))
    requests = create_requests(5, 7, 14)
    driver.add(*requests)
    while not driver.scheduler.kv.counts().swap_used:
        driver.step()
    driver.scheduler.forget_kv(driver.now)
    driver.runner.resize(driver.scheduler)
    driver.scheduler.check_invariants()
    assert driver.scheduler.kv.counts().swap_used == 0
    driver.run(max_steps=500)
    assert [r.output_token_ids for r in requests] == _run(512, "recompute", 0, count=5)[1]


def test_swap_without_space_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="num_swap_blocks is 0"):
        check_pair(SchedulerConfig(preemption_mode="swap"), CacheConfig(num_swap_blocks=0))
