"""The block map in columns against the same map counted block by block, under sharing, preemption and a fixed batch."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from core.scheduler import Scheduler
from core.snapshot import BlockMapView
from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens


def counted(scheduler: Scheduler) -> BlockMapView:
    """The definition of each column, one block and one table entry at a time."""
    kv, state = scheduler.kv, scheduler._state
    size, count = kv.block_size, kv.num_blocks
    owner, stamps, used = [0] * count, list(kv.pool.last_use), [0] * count
    names = []
    for number, table in enumerate(kv.all_tables(), start=1):
        request_id = table.request.request_id
        names.append(request_id)
        latest = max(table.last_step, state.all_rows_step) if request_id in state.rows.ids else table.last_step
        for logical, block in enumerate(table.block_ids):
            slots = min(max(table.num_used_tokens - logical * size, 0), size)
            owner[block] = owner[block] or number
            used[block] = max(used[block], slots)
            if slots:
                stamps[block] = max(stamps[block], latest)
    refs = [kv.pool.ref_count(b) for b in range(count)]
    cached = [kv.pool.is_cached(b) for b in range(count)]
    return BlockMapView(
        count,
        size,
        tuple(names),
        array("H", owner).tobytes(),
        bytes(255 if cached[b] and not refs[b] else used[b] * 255 // size for b in range(count)),
        bytes(min(r, 255) for r in refs),
        bytes((refs[b] > 0) + 2 * cached[b] + 4 * (refs[b] > 1) for b in range(count)),
        array("H", [min(max(scheduler.step - s, 0), 65_535) for s in stamps]).tobytes(),
    )


@pytest.mark.parametrize("batch_policy", ["chunked", "fixed"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_columns_are_what_the_definitions_say(seed: int, batch_policy: str) -> None:
    random = Random(seed)
    driver = Driver(create_scheduler(num_blocks=24, block_size=4, max_num_batched_tokens=64, batch_policy=batch_policy))
    for number in range(14):
        prompt = [*distinct_tokens("shared", 8), *distinct_tokens(f"own{number}", random.randint(1, 14))]
        driver.add(create_request(f"r{number}", prompt[random.choice((0, 8)) :], random.randint(1, 20)))
    seen = set()
    for _ in range(120):
        if not driver.scheduler.has_work():
            break
        driver.steps(1)
        view = driver.scheduler.block_map()
        assert view == counted(driver.scheduler)
        assert driver.scheduler.slots_used() == driver.scheduler.kv.slots_used()
        seen |= set(view.flags)
    assert {0, 1, 2} | ({7} if batch_policy == "chunked" else set()) <= seen, "free, live, cached, and where rows join shared"
    assert batch_policy == "fixed" or driver.scheduler.counters.preemptions > 0


def test_an_empty_pool_is_an_empty_map() -> None:
    scheduler = create_scheduler(num_blocks=5, block_size=4)
    assert scheduler.block_map() == counted(scheduler)
