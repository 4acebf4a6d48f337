"""Step records in bounded memory: the newest whole, older ones thinned, readable from any thread without a lock.

    thinned (every stride-th step)  |  sealed chunks of 256 steps, whole  |  open chunk
    <------------- keep -------------------------------------------------------------->

When the thinned part is full, every second record of it goes and the stride doubles, so the history always
reaches back to the first step. One thread appends; a reader takes one reference and copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.records import StepRecord

CHUNK_STEPS = 256

_Chunks = tuple[tuple[StepRecord, ...], ...]


class StepHistory:
    """At most about `keep` records (never more than keep + CHUNK_STEPS), three quarters of them the newest steps, whole.

    Records are appended in order of `step`.
    """

    def __init__(self, keep: int) -> None:
        self._max_whole_chunks = max(keep * 3 // 4 // CHUNK_STEPS, 1)
        self._max_thinned = max(keep - self._max_whole_chunks * CHUNK_STEPS, 16)
        self._stride = 1
        self._state: tuple[tuple[StepRecord, ...], _Chunks, list[StepRecord]] = ((), (), [])

    @property
    def stride(self) -> int:
        """Every stride-th of the old steps is kept."""
        return self._stride

    @property
    def last(self) -> StepRecord | None:
        """The latest record."""
        _, chunks, opened = self._state
        if opened:
            return opened[-1]
        return chunks[-1][-1] if chunks else None

    def append(self, record: StepRecord) -> None:
        """Add the next step. Engine's thread only."""
        thinned, chunks, opened = self._state
        opened.append(record)
        if len(opened) < CHUNK_STEPS:
            return
        chunks = (*chunks, tuple(opened))
        if len(chunks) > self._max_whole_chunks:
            thinned += self._thin(chunks[0])
            chunks = chunks[1:]
            while len(thinned) > self._max_thinned:
                self._stride *= 2
                thinned = self._thin(thinned)
        self._state = (thinned, chunks, [])

    def _thin(self, records: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
        stride = self._stride
        return tuple(r for r in records if r.step % stride == 0)

    def clear(self) -> None:
        """Forget everything. Engine's thread only."""
        self._stride = 1
        self._state = ((), (), [])

    def since(self, step: int) -> tuple[StepRecord, ...]:
        """Records of steps after `step`, oldest first. Any thread."""
        thinned, chunks, opened = self._state
        found = opened[:]
        if found and found[0].step <= step:
            return tuple(found[_first_after(found, step) :])
        parts: list[tuple[StepRecord, ...]] = [tuple(found)]
        for chunk in reversed(chunks):
            if chunk[0].step <= step:
                parts.append(chunk[_first_after(chunk, step) :])
                break
            parts.append(chunk)
        else:
            parts.append(tuple(r for r in thinned if r.step > step))
        return tuple(r for part in reversed(parts) for r in part)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.since(-1))

    def __len__(self) -> int:
        thinned, chunks, opened = self._state
        return len(thinned) + CHUNK_STEPS * len(chunks) + len(opened)

    def __getitem__(self, index: int) -> StepRecord:
        return self.since(-1)[index]


def _first_after(records: list[StepRecord] | tuple[StepRecord, ...], step: int) -> int:
    """Index of the first record of a later step; steps of a chunk rise but need not be dense."""
    low, high = 0, len(records)
    while low < high:
        middle = (low + high) // 2
        if records[middle].step <= step:
            low = middle + 1
        else:
            high = middle
    return low
