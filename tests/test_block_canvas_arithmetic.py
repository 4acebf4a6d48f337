"""The block map's arithmetic against a brute-force count over block tables."""

from __future__ import annotations

import array
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.block_view import (
    block_holding_times,
    columns,
    contiguous_runs,
    occupancy,
    reservations,
    tokens_in_blocks,
)
from core.records import RequestRecord
from core.snapshot import BlockMapView, RequestView


def request(request_id: str, blocks: tuple[int, ...], *, prompt: int, computed: int, max_tokens: int = 64) -> RequestView:
    return RequestView(
        request_id=request_id, status="running", tenant="default", priority=0, hue=0, arrival_s=0.0, age_s=1.0,
        prompt_tokens=prompt, output_tokens=max(computed - prompt, 0), max_tokens=max_tokens, computed_tokens=computed,
        cached_tokens=0, scheduled_tokens=1, is_prefill=False, num_preemptions=0, block_ids=blocks,
    )  # fmt: skip


def map_of(rows: list[RequestView], cached: set[int], total: int, size: int) -> BlockMapView:
    """Columns built one block at a time from the tables."""
    owner, fill, refs, flags = [0] * total, [0] * total, [0] * total, [0] * total
    for index, row in enumerate(rows, start=1):
        for logical, block in enumerate(row.block_ids):
            used = min(max(row.computed_tokens - logical * size, 0), size)
            owner[block] = owner[block] or index
            fill[block] = max(fill[block], round(255 * used / size))
            refs[block] += 1
    for block in range(total):
        if refs[block]:
            flags[block] = 1 | (4 if refs[block] > 1 else 0)
        elif block in cached:
            fill[block], flags[block] = 255, 2
    return BlockMapView(
        total, size, tuple(r.request_id for r in rows), array.array("H", owner).tobytes(), bytes(fill), bytes(refs),
        bytes(flags), array.array("H", [0] * total).tobytes(),
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[RequestView], set[int], int, int]:
    size = draw(st.sampled_from([1, 4, 16, 64]))
    total = draw(st.integers(4, 60))
    pool = list(range(total))
    random.Random(draw(st.integers(0, 10**6))).shuffle(pool)
    shared = [pool.pop() for _ in range(draw(st.integers(0, 2)))]
    rows = []
    for k in range(draw(st.integers(0, 5))):
        own = [pool.pop() for _ in range(min(draw(st.integers(1, 8)), len(pool)))]
        table = (*shared, *own)
        if not own:
            continue
        computed = (len(table) - 1) * size + draw(st.integers(1, size))
        rows.append(request(f"r{k}", table, prompt=max(computed // 2, 1), computed=computed))
    cached = set(pool[: draw(st.integers(0, len(pool)))])
    return rows, cached, total, size


@given(scenes())
def test_occupancy_equals_a_count_over_the_tables(scene: tuple[list[RequestView], set[int], int, int]) -> None:
    rows, cached, total, size = scene
    pool = occupancy(map_of(rows, cached, total, size))
    live = {block for row in rows for block in row.block_ids}
    used = {block: min(row.computed_tokens - logical * size, size) for row in rows for logical, block in enumerate(row.block_ids)}
    assert pool.live == len(live)
    assert pool.cached == len(cached - live)
    assert pool.live + pool.cached + pool.free == total
    assert pool.saved == sum(len(row.block_ids) for row in rows) - len(live)
    assert pool.slots_used == sum(used.values())
    assert 0.0 <= pool.fragmentation < 1.0 or not live
    # only the last block of a request is partly filled, so less than one block a request is lost
    assert pool.slots_reserved - pool.slots_used <= len(rows) * (size - 1)


@given(scenes(), st.integers(1, 4000))
def test_a_contiguous_cache_never_reserves_less_than_it_holds(
    scene: tuple[list[RequestView], set[int], int, int], longest: int
) -> None:
    rows, cached, total, size = scene
    longest = max([longest, *(r.computed_tokens for r in rows)])
    paged, asked, full = reservations(rows, occupancy(map_of(rows, cached, total, size)), longest)
    assert paged.used_tokens <= asked.used_tokens == full.used_tokens == sum(r.computed_tokens for r in rows)
    assert asked.used_tokens <= asked.reserved_tokens <= full.reserved_tokens == longest * len(rows)
    for way in (paged, asked, full):
        assert 0.0 <= way.wasted_share < 1.0 or not rows
        assert (way.fits(total * size) is None) == (not rows)


def test_reservations_of_a_case_worked_by_hand() -> None:
    rows = [request("a", (0, 1), prompt=20, computed=24, max_tokens=12), request("b", (2,), prompt=8, computed=9, max_tokens=8)]
    paged, asked, full = reservations(rows, occupancy(map_of(rows, set(), 8, 16)), 128)
    assert (paged.reserved_tokens, paged.used_tokens, paged.wasted_tokens) == (48, 33, 15)
    assert (asked.reserved_tokens, asked.wasted_tokens) == (20 + 12 + 8 + 8, 15)
    assert (full.reserved_tokens, full.wasted_share) == (256, 1 - 33 / 256)
    assert (paged.fits(128), full.fits(128)) == (5, 1)


def test_pieces_of_a_block_table() -> None:
    assert contiguous_runs(()) == 0
    assert contiguous_runs((7,)) == 1
    assert contiguous_runs((7, 8, 9)) == 1
    assert contiguous_runs((9, 8, 7)) == 3
    assert contiguous_runs((1, 2, 5, 6, 3)) == 3


@pytest.mark.parametrize("size", [1, 7, 16, 64, 127])
def test_tokens_of_a_block_survive_the_byte(size: int) -> None:
    view = BlockMapView(size + 1, size, fill=bytes(round(255 * k / size) for k in range(size + 1)))
    assert tokens_in_blocks(view).tolist() == list(range(size + 1))


def test_a_column_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match="column last_use of the block map has 4 bytes; 3 blocks need 2 each"):
        columns(BlockMapView(3, 16, owner=b"\0" * 6, fill=b"\0" * 3, refs=b"\0" * 3, flags=b"\0" * 3, last_use=b"\0" * 4))


def ended(**changes: object) -> RequestRecord:
    base = {
        "request_id": "a", "tenant": "default", "priority": 0, "arrival_s": 100.0, "finished_s": 110.0, "finish_reason": "length",
        "prompt_tokens": 6, "output_tokens": 4, "cached_tokens": 0, "num_preemptions": 0, "queue_s": 1.0, "ttft_s": 2.0,
        "tpot_s": 2.0, "e2e_s": 8.0, "max_itl_s": 2.0, "preempted_s": 0.0, "itl_s": (2.0, 2.0, 2.0),
    }  # fmt: skip
    return RequestRecord(**{**base, **changes})  # type: ignore[arg-type]


def test_holding_times_follow_the_tokens() -> None:
    # tokens stored: 6 of the prompt, 3 of the output (the fourth is never written); blocks of 4 begin at slots 0, 4, 8
    # slots 0 and 4 are the prompt's, taken at admission (1 s); slot 8 is output token 2, which is there from 2 + 2 + 2 = 6 s
    assert block_holding_times([ended()], 4) == [7.0, 7.0, 2.0]
    assert block_holding_times([ended()], 4, reserved_at_admission=True) == [7.0, 7.0, 7.0]


def test_holding_times_leave_out_what_they_cannot_know() -> None:
    odd = [
        ended(num_preemptions=1),
        ended(queue_s=None),
        ended(ttft_s=None),
        ended(output_tokens=0, itl_s=()),
        ended(itl_s=(2.0,)),
    ]
    assert block_holding_times(odd, 4) == []
    assert block_holding_times([ended(output_tokens=1, itl_s=(), e2e_s=2.0)], 16) == [1.0]
