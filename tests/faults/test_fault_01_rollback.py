"""Fault 1: an allocation that fails half-way keeps the blocks it already took."""

from __future__ import annotations

from array import array

import pytest

from core.block_pool import BlockPool
from core.errors import InvariantError
from tests.scheduler_helpers import Driver, create_request, create_scheduler
from tests.test_sched_pool import state_of


class BrokenFreeList(array):
    """A free list that breaks when more than one block is taken from it."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        if isinstance(index, slice) and len(found) > 1:
            raise RuntimeError("injected: the free list breaks")
        return found


def _with_a(num_blocks: int = 4) -> Driver:
    driver = Driver(create_scheduler(num_blocks=num_blocks, block_size=4, max_num_seqs=4))
    driver.add(create_request("A", 12, max_tokens=1 + 200))
    driver.step()
    return driver


def test_too_few_blocks_change_nothing() -> None:
    driver = _with_a()
    pool = driver.scheduler.kv.pool
    before, tables = state_of(pool), driver.scheduler.kv.block_ids("A")
    assert pool.num_free == 1
    b = create_request("B", 9)
    assert driver.scheduler.kv.admit(b, (), 9, 1) is None
    assert state_of(pool) == before
    assert driver.scheduler.kv.block_ids("A") == tables
    assert driver.scheduler.kv.block_ids("B") == ()
    driver.abort("A")
    assert pool.num_available == 4


def test_a_broken_free_list_changes_nothing_else() -> None:
    pool = BlockPool(4)
    pool._free = BrokenFreeList("q", pool._free)
    before = state_of(pool)
    with pytest.raises(RuntimeError, match="injected"):
        pool.allocate(3)
    assert state_of(pool) == before


def test_a_free_list_that_holds_a_live_block_is_found_before_anything_moves() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1) or []
    pool._free.append(block)
    before = state_of(pool)
    with pytest.raises(InvariantError, match="broken"):
        pool.allocate(3)
    assert state_of(pool) == before


def test_both_cancelled_leaves_the_whole_pool() -> None:
    driver = _with_a()
    driver.add(create_request("B", 9))
    driver.step()
    assert driver.scheduler.kv.block_ids("B") == ()
    driver.abort("A")
    driver.abort("B")
    counts = driver.scheduler.kv.counts()
    assert (counts.live, counts.free + counts.cached) == (0, 4)
