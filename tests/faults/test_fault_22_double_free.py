"""Fault 22: freeing one block twice puts it on the free list twice, and two live requests share it."""

from __future__ import annotations

import pytest

from core.block_pool import BlockPool
from core.errors import InvariantError
from tests.scheduler_helpers import Driver, create_request, create_scheduler
from tests.test_sched_pool import state_of


@pytest.mark.parametrize("again", [[0], [0, 1], [1, 1]])
def test_a_second_release_is_refused_and_changes_nothing(again: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    pool.release([0])
    before = state_of(pool)
    with pytest.raises(InvariantError, match=r"twice|double free"):
        pool.release(again)
    assert state_of(pool) == before
    pool.release([1])
    assert sorted(pool.allocate(4) or []) == [0, 1, 2, 3]
    assert pool.num_free == 0


def test_a_request_that_finishes_in_the_step_in_which_it_is_cancelled() -> None:
    driver = Driver(create_scheduler(num_blocks=4, block_size=4))
    request = create_request("R", 4, 1)
    driver.add(request)
    out = driver.scheduler.schedule(0.0)
    result = driver.runner.execute_model(out)
    driver.scheduler.abort("R", 0.5)
    driver.scheduler.check_invariants()
    events = driver.scheduler.update_from_output(out, result, 1.0)
    driver.scheduler.check_invariants()
    assert not [e for e in events if e.kind in ("token", "finished")]
    assert request.output_token_ids == []
    counts = driver.scheduler.kv.counts()
    assert (counts.live, counts.free + counts.cached) == (0, 4)
    assert sorted(driver.scheduler.kv.pool.allocate(4) or []) == [0, 1, 2, 3]
