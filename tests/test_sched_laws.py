"""The checks themselves: each broken law is found, with the story of the request concerned; and the block map."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from core.errors import InvariantError
from core.request import RequestStatus
from core.scheduler import Scheduler
from tests.scheduler_helpers import Driver, create_request, create_requests, create_scheduler, distinct_tokens


def _busy() -> Driver:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, max_num_seqs=3))
    driver.add(*create_requests(5, 6, 20))
    driver.steps(4)
    return driver


def _lose_a_block(s: Scheduler) -> None:
    s.kv.pool._free.pop()


def _free_a_live_block(s: Scheduler) -> None:
    s.kv.pool._free.append(s.kv.block_ids("r0")[0])


def _list_a_free_block_twice(s: Scheduler) -> None:
    s.kv.pool._free.append(s.kv.pool._free[0])


def _count_a_reference_too_many(s: Scheduler) -> None:
    s.kv.pool._refs[s.kv.block_ids("r0")[0]] += 1


def _share_without_reference(s: Scheduler) -> None:
    s.kv.tables["r1"].block_ids[0] = s.kv.block_ids("r0")[0]


def _stale_index(s: Scheduler) -> None:
    (name, block), *_ = list(s.kv.pool.index_items())
    s.kv.pool._index[name] = (block + 1) % 16


def _forget_a_request(s: Scheduler) -> None:
    s._state.counters.submitted += 1


def _compute_beyond_the_table(s: Scheduler) -> None:
    s.requests["r0"].num_computed_tokens = 99


def _run_while_waiting(s: Scheduler) -> None:
    s.requests["r0"].status = RequestStatus.WAITING


def _too_many_seats(s: Scheduler) -> None:
    object.__setattr__(s.config, "max_num_seqs", 1)


def _counter_falls(s: Scheduler) -> None:
    s._state.counters.output_tokens -= 3


def _gauge_off(s: Scheduler) -> None:
    s._state.ledger.account("default").running += 1


@pytest.mark.parametrize(
    ("damage", "concerns"),
    [
        (_lose_a_block, ""),
        (_free_a_live_block, ""),
        (_list_a_free_block_twice, ""),
        (_count_a_reference_too_many, ""),
        (_share_without_reference, ""),
        (_stale_index, ""),
        (_forget_a_request, ""),
        (_compute_beyond_the_table, "r0"),
        (_run_while_waiting, "r0"),
        (_too_many_seats, ""),
        (_counter_falls, ""),
        (_gauge_off, ""),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], concerns: str) -> None:
    scheduler = _busy().scheduler
    scheduler.check_invariants()
    damage(scheduler)
    with pytest.raises(InvariantError) as found:
        scheduler.check_invariants()
    if concerns:
        assert f"request {concerns} " in str(found.value)
        assert "submitted 6 prompt tokens" in str(found.value), "the message holds the story"


def test_a_decision_that_breaks_a_law_is_found() -> None:
    driver = _busy()
    out = driver.scheduler.schedule(driver.now)
    object.__setattr__(out, "num_scheduled_tokens", (1000, *out.num_scheduled_tokens[1:]))
    with pytest.raises(InvariantError, match="the budget is"):
        driver.scheduler.check_invariants()


def test_an_illegal_change_of_state_shows_the_story() -> None:
    driver = Driver(create_scheduler())
    request = create_request("R", 4, 1)
    driver.add(request)
    driver.run()
    with pytest.raises(InvariantError, match=r"cannot go from finished to running(.|\n)*first_token"):
        request.move_to(RequestStatus.RUNNING)


def test_the_story_tells_a_whole_life_with_its_blocks() -> None:
    driver = Driver(create_scheduler(num_blocks=6, block_size=4))
    driver.add(create_request("A", 8, 12), create_request("B", 8, 12))
    driver.run()
    (b,) = [r for r in driver.scheduler.pop_ended() if r.request_id == "B"]
    kinds = [e.kind for e in b.story]
    assert kinds[:4] == ["submitted", "admitted", "chunk", "first_token"]
    assert kinds[-1] == "finished"
    assert "blocks " in next(e.detail for e in b.story if e.kind == "preempted")
    assert "blocks " in b.story[-1].detail
    assert [e.step for e in b.story] == sorted(e.step for e in b.story)


# -- the block map ---------------------------------------------------------------------------------------


def test_the_block_map_shows_every_block_as_it_is() -> None:
    driver = Driver(create_scheduler(num_blocks=12, block_size=4))
    driver.add(create_request("ended", distinct_tokens("shared", 9), 1))
    driver.run()
    driver.add(create_request("a", distinct_tokens("shared", 9), 20), create_request("b", distinct_tokens("shared", 9), 20))
    driver.steps(3)
    view = driver.scheduler.block_map()
    kv = driver.scheduler.kv
    owner, age = array("H", view.owner), array("H", view.last_use)
    assert (view.num_blocks, view.block_size, len(view.fill), len(view.refs), len(view.flags)) == (12, 4, 12, 12, 12)
    held = {name: kv.block_ids(name) for name in ("a", "b")}
    for block in range(12):
        live = block in held["a"] or block in held["b"]
        assert view.flags[block] & 1 == live
        assert view.refs[block] == (block in held["a"]) + (block in held["b"])
        assert bool(view.flags[block] & 4) == (view.refs[block] > 1)
        if live:
            assert view.owners[owner[block] - 1] == ("a" if block in held["a"] else "b")
            assert age[block] == 0
        else:
            assert owner[block] == 0
    assert [view.flags[b] for b in held["a"][:2]] == [7, 7], "two prompt blocks are live, cached and shared"
    computed = driver.scheduler.requests["a"].num_computed_tokens
    assert view.fill[held["a"][-1]] == (computed % 4 or 4) * 255 // 4
    assert kv.slots_used() == 2 * computed - 8, "shared slots count once"


def test_the_age_of_a_block_is_that_of_its_owners_latest_step() -> None:
    driver = Driver(create_scheduler(num_blocks=32, block_size=4, max_num_batched_tokens=2))
    driver.add(*create_requests(3, 2, 20))
    driver.steps(4)
    driver.steps(5)
    view = driver.scheduler.block_map()
    age = array("H", view.last_use)
    ages = {
        name: age[driver.scheduler.kv.block_ids(name)[0]] for name in ("r0", "r1", "r2") if driver.scheduler.kv.block_ids(name)
    }
    assert ages["r0"] == 0
    assert all(value >= 0 for value in ages.values())


def test_cached_blocks_grow_old() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4))
    driver.add(create_request("ended", 8, 1))
    driver.run()
    driver.add(create_request("other", 4, 9))
    driver.run()
    view = driver.scheduler.block_map()
    cached = [b for b in range(16) if view.flags[b] == 2]
    assert cached
    assert max(array("H", view.last_use)[b] for b in cached) >= 9
    assert all(view.fill[b] == 255 for b in cached)
