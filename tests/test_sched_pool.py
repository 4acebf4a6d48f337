"""The block pool: free list, references, prefix index, eviction; checked against a brute-force model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_pool import BlockPool
from core.config import EvictionPolicy
from core.errors import InvariantError


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def cached_block(pool: BlockPool, number: int, uses: int = 1) -> int:
    """A cached block that was used `uses` times."""
    (block,) = pool.allocate(1) or []
    pool.publish(block, key(number))
    pool.release([block])
    for _ in range(uses - 1):
        pool.allocate(0, [block])
        pool.release([block])
    return block


def state_of(pool: BlockPool) -> tuple[object, ...]:
    return (
        list(pool._free),
        list(pool._refs),
        list(pool._hash_of),
        dict(pool._index),
        bytes(pool._published),
        list(pool._evictable),
        list(pool._uses),
        list(pool.last_use),
        pool.num_evictions,
        pool.num_extra_refs,
    )


def test_every_block_is_handed_out_once() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate(5) or []) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert (pool.num_free, pool.num_live, pool.num_cached) == (0, 5, 0)


def test_released_blocks_without_content_are_free_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3) or []
    assert pool.release(blocks) == 3
    assert pool.num_free == 4


def test_a_cached_block_keeps_its_entry_until_it_is_overwritten() -> None:
    pool = BlockPool(2)
    block = cached_block(pool, 7)
    assert (pool.num_free, pool.num_cached, pool.lookup(key(7))) == (1, 1, block)
    pool.allocate(2)
    assert pool.lookup(key(7)) is None
    assert pool.num_evictions == 1
    pool.check()


def test_a_shared_block_counts_its_holders() -> None:
    pool = BlockPool(2)
    block = cached_block(pool, 1)
    pool.allocate(0, [block])
    pool.allocate(0, [block])
    assert (pool.ref_count(block), pool.num_live, pool.num_extra_refs) == (2, 1, 1)
    assert pool.release([block]) == 0
    assert pool.release([block]) == 1
    assert pool.lookup(key(1)) == block
    pool.check()


def test_a_hit_is_never_evicted_by_the_allocation_that_uses_it() -> None:
    pool = BlockPool(3)
    blocks = [cached_block(pool, n) for n in range(3)]
    before = state_of(pool)
    assert pool.allocate(3, [blocks[0]]) is None
    assert state_of(pool) == before
    assert sorted(pool.allocate(2, [blocks[0]]) or []) == sorted(blocks[1:])
    assert pool.lookup(key(0)) == blocks[0]


def test_lru_overwrites_the_block_released_longest_ago() -> None:
    pool = BlockPool(3, EvictionPolicy.LRU)
    first, second, third = (cached_block(pool, n) for n in range(3))
    pool.allocate(0, [first])
    pool.release([first])
    assert pool.allocate(3) == [second, third, first]


def test_lfu_overwrites_the_block_used_least_often() -> None:
    pool = BlockPool(3, EvictionPolicy.LFU)
    often, rare, middle = cached_block(pool, 0, uses=5), cached_block(pool, 1, uses=1), cached_block(pool, 2, uses=3)
    assert pool.allocate(3) == [rare, middle, often]


def test_a_change_of_eviction_policy_reorders_what_is_cached() -> None:
    pool = BlockPool(2, EvictionPolicy.LRU)
    often, rare = cached_block(pool, 0, uses=4), cached_block(pool, 1)
    pool.set_eviction_policy(EvictionPolicy.LFU)
    pool.check()
    assert pool.allocate(2) == [rare, often]


def test_a_table_gives_its_end_up_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3) or []
    for number, block in enumerate(blocks):
        pool.publish(block, key(number))
    pool.release(blocks)
    assert pool.allocate(2) == [blocks[2], blocks[1]]
    assert pool.lookup(key(0)) == blocks[0]


def test_forgetting_keeps_live_blocks_and_frees_cached_ones() -> None:
    pool = BlockPool(3)
    live = pool.allocate(1) or []
    pool.publish(live[0], key(1))
    cached_block(pool, 2)
    pool.forget_all()
    assert (pool.num_free, pool.num_cached, pool.num_live) == (2, 0, 1)
    assert pool.lookup(key(1)) is None
    pool.check()


def test_publishing_the_same_content_twice_keeps_the_first_entry() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2) or []
    assert pool.publish(first, key(1))
    assert not pool.publish(second, key(1))
    pool.release([first, second])
    assert (pool.num_free, pool.num_cached) == (1, 1)


def test_overwritten_content_can_be_published_again_elsewhere() -> None:
    pool = BlockPool(3)
    first = cached_block(pool, 1)
    blocks = pool.allocate(3) or []
    assert pool.lookup(key(1)) is None
    other = next(b for b in blocks if b != first)
    assert pool.publish(other, key(1))
    assert pool.lookup(key(1)) == other
    pool.check()
    assert pool.publish(first, key(2))
    pool.check()
    assert sorted(pool.index_items()) == sorted([(key(1), other), (key(2), first)])


def test_the_same_content_may_come_back_to_the_same_block() -> None:
    pool = BlockPool(1)
    block = cached_block(pool, 1)
    pool.allocate(1)
    assert list(pool.index_items()) == []
    assert pool.publish(block, key(1))
    pool.check()
    assert pool.lookup(key(1)) == block


def test_only_a_live_block_can_be_published_and_under_one_name() -> None:
    pool = BlockPool(1)
    with pytest.raises(InvariantError, match="not live"):
        pool.publish(0, key(1))
    pool.allocate(1)
    pool.publish(0, key(1))
    with pytest.raises(InvariantError, match="another hash"):
        pool.publish(0, key(2))


def test_sharing_a_free_block_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(2)
    before = state_of(pool)
    with pytest.raises(InvariantError, match="cannot be shared"):
        pool.allocate(1, [1])
    assert state_of(pool) == before


class Model:
    """The pool as three plain sets, a list in order of release and a dictionary."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.refs: dict[int, int] = {}
        self.names: dict[int, int] = {}  # block -> content
        self.cached: list[int] = []  # oldest release first

    @property
    def free(self) -> set[int]:
        return set(range(self.size)) - set(self.refs) - set(self.cached)


@settings(max_examples=60)
@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("asrp"), st.integers(0, 30), st.integers(0, 5)), max_size=60))
def test_the_pool_agrees_with_plain_sets(size: int, calls: list[tuple[str, int, int]]) -> None:
    pool, model = BlockPool(size), Model(size)
    for call, number, count in calls:
        live = sorted(model.refs)
        if call == "a":
            got = pool.allocate(count)
            if count > len(model.free) + len(model.cached):
                assert got is None
                continue
            assert got is not None
            evicted = model.cached[: max(count - len(model.free), 0)]
            assert set(got) == (model.free if evicted or count == len(model.free) else set(got) & model.free) | set(evicted)
            model.cached = [b for b in model.cached if b not in evicted]
            for block in evicted:
                del model.names[block]
            model.refs |= dict.fromkeys(got, 1)
        elif call == "s" and model.names:
            block = sorted(model.names)[number % len(model.names)]
            pool.allocate(0, [block])
            model.refs[block] = model.refs.get(block, 0) + 1
            model.cached = [b for b in model.cached if b != block]
        elif call == "r" and live:
            block = live[number % len(live)]
            pool.release([block])
            model.refs[block] -= 1
            if not model.refs[block]:
                del model.refs[block]
                model.cached += [block] if block in model.names else []
        elif call == "p" and live:
            block = live[number % len(live)]
            if block not in model.names:
                assert pool.publish(block, key(number)) == (number not in model.names.values())
                if number not in model.names.values():
                    model.names[block] = number
        pool.check()
        assert {b: pool.ref_count(b) for b in range(size) if pool.ref_count(b)} == model.refs
        assert list(pool._evictable) == model.cached
        assert {b: int.from_bytes(h, "little") for h, b in pool.index_items()} == model.names
        assert (pool.num_free, pool.num_cached, pool.num_live) == (len(model.free), len(model.cached), len(model.refs))


def test_a_refault_is_content_that_was_overwritten_and_came_back() -> None:
    pool = BlockPool(2)
    for name in (b"a", b"b"):
        (block,) = pool.allocate(1) or [-1]
        pool.publish(block, name)
        pool.release([block])
    assert pool.num_refaults == 0
    blocks = pool.allocate(2) or []
    pool.publish(blocks[0], b"c")
    assert pool.num_refaults == 0, "content never seen before"
    pool.publish(blocks[1], b"a")
    assert pool.num_refaults == 1
    pool.check()


def test_the_names_of_lost_content_are_bounded() -> None:
    pool = BlockPool(2)
    for number in range(100):
        (block,) = pool.allocate(1) or [-1]
        pool.publish(block, f"{number}".encode())
        pool.release([block])
    assert pool.num_refaults == 0
    (block,) = pool.allocate(1) or [-1]
    pool.publish(block, b"0")
    assert pool.num_refaults == 0, "lost too long ago to be remembered"
