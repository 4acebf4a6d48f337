"""The block map of a picture, put together by whoever first looks at it.

    engine's thread: copies of the pool's columns, the tables as (list, length)      a few us
    first reader:    owner, fill, refs, flags, last_use of every block               what the map really costs

A block table only grows, so a list and a length say for ever what the table was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from core.scheduler_state import SchedulerState
from core.slots import by_slots
from core.snapshot import BlockMapView

LIVE, CACHED, SHARED = 1, 2, 4
_MAX_U16 = 65_535
_block_ids, _last_step, _computed = attrgetter("block_ids"), attrgetter("last_step"), attrgetter("request.num_computed_tokens")


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """All that a block map follows from, as it was between two steps.

    Attributes:
        held, cached, stamps: of each block: references (int32), 1 where the index has it (uint8), step in which a table last
            gave it up (int64).
        owners, tables, lengths, tokens, last_steps: of each table: request, block ids, how many of them, computed tokens,
            latest step that ran the request.
        shares: some block is in more than one table.
    """

    step: int
    block_size: int
    held: bytes
    cached: bytes
    stamps: bytes
    owners: tuple[str, ...]
    tables: Sequence[Sequence[int]]
    lengths: Sequence[int]
    tokens: Sequence[int]
    last_steps: Sequence[int]
    shares: bool

    @staticmethod
    def of(state: SchedulerState) -> BlockColumns:
        """The columns of now. The age of a live block is that of its owner's latest step: attention reads all of it."""
        kv, rows = state.kv, state.rows
        tables = [*kv.tables.values(), *kv.held]
        owners = (*kv.tables, *[t.request.request_id for t in kv.held])
        lists = list(map(_block_ids, tables))
        noted: Sequence[int]
        if len(rows) == len(tables) and state.all_rows_step == state.step:  # all tables are of rows that decode, and all ran
            noted, tokens = (state.step,) * len(tables), list(map(_computed, tables))
        else:
            decoding, latest = set(rows.ids), state.all_rows_step  # rows that decode are noted all at once
            noted = [
                latest if latest > own and owner in decoding else own
                for owner, own in zip(owners, map(_last_step, tables), strict=True)
            ]
            tokens = [t.num_used_tokens for t in tables]
        shares = kv.pool.num_extra_refs > 0
        return _columns(
            state.step, kv.block_size, *kv.pool.columns(), owners, lists, list(map(len, lists)), tokens, noted, shares
        )

    def view(self) -> BlockMapView:
        """The map; O(blocks + table entries), in columns."""
        size, held, cached = self.block_size, np.frombuffer(self.held, np.int32), np.frombuffer(self.cached, np.uint8)
        count = len(held)
        owner, used, stamps = np.zeros(count, "<u2"), np.zeros(count, np.int64), np.frombuffer(self.stamps, np.int64).copy()
        lengths = np.array(self.lengths, np.int64)
        if lengths.any():
            blocks = np.array(
                list(chain.from_iterable([t[:n] for t, n in zip(self.tables, self.lengths, strict=True)])), np.int64
            )
            row = np.repeat(np.arange(len(lengths)), lengths)
            place = np.arange(len(blocks)) - (np.cumsum(lengths) - lengths)[row]  # logical, within its table
            slots = np.clip(np.array(self.tokens, np.int64)[row] - place * size, 0, size)
            owner[blocks[::-1]] = np.minimum(row + 1, _MAX_U16)[::-1]  # the last to write is the first that holds the block
            latest = np.where(slots > 0, np.array(self.last_steps, np.int64)[row], 0)
            if self.shares:
                np.maximum.at(used, blocks, slots)
                np.maximum.at(stamps, blocks, latest)
            else:
                used[blocks] = slots
                stamps[blocks] = np.maximum(stamps[blocks], latest)
        is_live, is_cached = held > 0, cached != 0
        fill = used * 255 // size
        fill[is_cached & ~is_live] = 255
        return BlockMapView(
            num_blocks=count,
            block_size=size,
            owners=self.owners,
            owner=owner.tobytes(),
            fill=fill.astype(np.uint8).tobytes(),
            refs=np.minimum(held, 255).astype(np.uint8).tobytes(),
            flags=(LIVE * is_live + CACHED * is_cached + SHARED * (held > 1)).astype(np.uint8).tobytes(),
            last_use=np.clip(self.step - stamps, 0, _MAX_U16).astype("<u2").tobytes(),
        )


_columns = by_slots(BlockColumns)


def _seen(name: str, self: BlockMapOnDemand) -> bytes:
    value: bytes = getattr(self.whole(), name)
    return value


class BlockMapOnDemand(BlockMapView):
    """A block map whose byte strings are made at the first look; equal to the map made at once.

    Any thread may look. Two that look at the same time both make it, and it is the same.
    """

    __slots__ = ("_columns", "_whole")
    _columns: BlockColumns
    _whole: BlockMapView | None

    def __init__(self, columns: BlockColumns) -> None:
        put = partial(object.__setattr__, self)
        put("num_blocks", len(columns.cached))
        put("block_size", columns.block_size)
        put("owners", columns.owners)
        put("_columns", columns)
        put("_whole", None)

    def whole(self) -> BlockMapView:
        """The map as a plain value."""
        columns = self._columns  # read before _whole: they are changed in the other order
        made = self._whole
        if made is None:
            made = columns.view()
            object.__setattr__(self, "_whole", made)
            object.__setattr__(self, "_columns", None)
        return made

    owner, fill, refs, flags, last_use = (
        property(partial(_seen, name)) for name in ("owner", "fill", "refs", "flags", "last_use")
    )

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, BlockMapOnDemand) else other)

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.whole(),)


def _itself(view: BlockMapView) -> BlockMapView:
    return view
