"""Step records in bounded memory: the newest whole, older ones thinned, readable from any thread without a lock.

    thinned (every stride-th step)  |  chunks of 256 steps, whole          |  open chunk
      packed          |  a rest     |  packed        |  the newest 8       |
    <------------- keep -------------------------------------------------------------->

When the thinned part is full, every second record of it goes and the stride doubles, so the history always
reaches back to the first step. What pages draw at each refresh are objects; older records are bytes (`core.packed`),
about 80 B each instead of 800, and are made again for whoever asks for them. One thread appends; a reader takes one
reference and copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from core.packed import columns_of, packed, unpacked
from core.records import StepRecord
from core.slots import by_columns

CHUNK_STEPS = 256
OPEN_CHUNKS = 8
"""Chunks of whole steps that stay objects."""

_Records = tuple[StepRecord, ...]
_columns, _records = columns_of(StepRecord), by_columns(StepRecord)


class _Packed:
    """Records as bytes. Immutable."""

    __slots__ = ("_content", "count", "last")

    def __init__(self, records: Sequence[StepRecord]) -> None:
        self.count, self.last = len(records), records[-1].step
        self._content = packed(_columns(records))

    def records(self) -> _Records:
        return tuple(_records(self.count, *unpacked(self._content)))


class _State:
    """All that is kept: thinned and whole, each packed before and objects after. Replaced, but for `opened`, which grows."""

    __slots__ = ("newest", "old", "opened", "rest", "thinned")

    def __init__(
        self,
        thinned: tuple[_Packed, ...] = (),
        rest: _Records = (),
        old: tuple[_Packed, ...] = (),
        newest: tuple[_Records, ...] = (),
    ) -> None:
        self.thinned, self.rest, self.old, self.newest = thinned, rest, old, newest
        self.opened: list[StepRecord] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _State:
        copied = _State(self.thinned, self.rest, self.old, self.newest)
        copied.opened = self.opened[:]
        return copied


class StepHistory:
    """At most about `keep` records (never more than keep + CHUNK_STEPS), three quarters of them the newest steps, whole.

    Records are appended in order of `step`.
    """

    def __init__(self, keep: int) -> None:
        self._max_whole_chunks = max(keep * 3 // 4 // CHUNK_STEPS, 1)
        self._max_thinned = max(keep - self._max_whole_chunks * CHUNK_STEPS, 16)
        self._stride = 1
        self._state = _State()

    @property
    def stride(self) -> int:
        """Every stride-th of the old steps is kept."""
        return self._stride

    @property
    def last(self) -> StepRecord | None:
        """The latest record."""
        state = self._state
        if state.opened:
            return state.opened[-1]
        return state.newest[-1][-1] if state.newest else None

    def append(self, record: StepRecord) -> None:
        """Add the next step. Engine's thread only."""
        state = self._state
        state.opened.append(record)
        if len(state.opened) < CHUNK_STEPS:
            return
        thinned, rest, old, newest = state.thinned, state.rest, state.old, (*state.newest, tuple(state.opened))
        if len(newest) > min(OPEN_CHUNKS, self._max_whole_chunks):
            old, newest = (*old, _Packed(newest[0])), newest[1:]
        if len(old) + len(newest) > self._max_whole_chunks:
            thinned, rest = self._thin(thinned, rest, old[0])
            old = old[1:]
        self._state = _State(thinned, rest, old, newest)

    def _thin(self, thinned: tuple[_Packed, ...], rest: _Records, leaving: _Packed) -> tuple[tuple[_Packed, ...], _Records]:
        """The thinned part with a chunk that leaves the whole part."""
        rest = (*rest, *self._every(leaving.records()))
        count = sum(p.count for p in thinned) + len(rest)
        if count > self._max_thinned:
            rest = (*chain.from_iterable(p.records() for p in thinned), *rest)
            thinned = ()
            while len(rest) > self._max_thinned:
                self._stride *= 2
                rest = self._every(rest)
        while len(rest) >= CHUNK_STEPS:
            thinned, rest = (*thinned, _Packed(rest[:CHUNK_STEPS])), rest[CHUNK_STEPS:]
        return thinned, rest

    def _every(self, records: _Records) -> _Records:
        stride = self._stride
        return tuple([r for r in records if r.step % stride == 0])

    def clear(self) -> None:
        """Forget everything. Engine's thread only."""
        self._stride = 1
        self._state = _State()

    def since(self, step: int) -> _Records:
        """Records of steps after `step`, oldest first. Any thread."""
        state = self._state
        found = tuple(state.opened)
        if found and found[0].step <= step:
            return found[_first_after(found, step) :]
        parts = [found]
        kept: list[_Records | _Packed] = [*state.thinned, state.rest, *state.old, *state.newest]
        for each in reversed(kept):
            if isinstance(each, _Packed) and each.last <= step:
                break
            chunk = each.records() if isinstance(each, _Packed) else each
            if chunk and chunk[0].step <= step:
                parts.append(chunk[_first_after(chunk, step) :])
                break
            parts.append(chunk)
        return tuple(chain.from_iterable(reversed(parts)))

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.since(-1))

    def __len__(self) -> int:
        state = self._state
        whole = sum(p.count for p in state.old) + CHUNK_STEPS * len(state.newest)
        return sum(p.count for p in state.thinned) + len(state.rest) + whole + len(state.opened)

    def __getitem__(self, index: int) -> StepRecord:
        return self.since(-1)[index]


def _first_after(records: _Records, step: int) -> int:
    """Index of the first record of a later step; steps of a chunk rise but need not be dense."""
    low, high = 0, len(records)
    while low < high:
        middle = (low + high) // 2
        if records[middle].step <= step:
            low = middle + 1
        else:
            high = middle
    return low
