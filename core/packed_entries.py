"""The entries of a run, all but the newest packed: what a reader looks at is unpacked by the piece.

    on_step -> open piece, objects as they are -> at 16 entries: columns, packed once

    [ 16 entries as bytes | 16 entries as bytes | ... | the rest, objects ]

A step of 32 rows is about 5 KB as objects and 0.3 KB packed. More entries a piece pack a little smaller, but the step at
which a piece is full then waits longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, SupportsIndex, overload

from core.outputs import ModelRunnerOutput, SchedulerOutput, StepTiming
from core.packed import columns_of, packed, unpacked
from core.run_entries import CommandEntry, Entry, StepEntry
from core.slots import by_columns

PIECE = 16
_KEPT_PIECES = 4

_outputs, _timings = columns_of(SchedulerOutput), columns_of(StepTiming)
_answers = attrgetter("step", "logprobs", "graph")
_steps_of, _outputs_of = by_columns(StepEntry), by_columns(SchedulerOutput)
_results_of, _timings_of = by_columns(ModelRunnerOutput), by_columns(StepTiming)
_Sampled = tuple[tuple[str, int], ...]


def _split(output: SchedulerOutput, sampled: _Sampled) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
    """(names, tokens); the names are None where they are those of the rows that sample."""
    if not sampled:
        return None if not any(output.samples) else (), ()
    names, tokens = zip(*sampled, strict=True)
    rows = output.request_ids
    if names == rows and all(output.samples):
        return None, tokens
    return None if names == tuple(compress(rows, output.samples)) else names, tokens


def _joined(output: SchedulerOutput, names: tuple[str, ...] | None, tokens: tuple[int, ...]) -> _Sampled:
    of = compress(output.request_ids, output.samples) if names is None else names
    return tuple(zip(of, tokens, strict=True))


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Entries as bytes: steps by columns, the rest as it is with its place."""
    steps = [e for e in entries if type(e) is StepEntry]
    others = [
        (at, (e.step, e.time_s, e.command, e.late) if type(e) is CommandEntry else e)
        for at, e in enumerate(entries)
        if type(e) is not StepEntry
    ]
    results = [e.result for e in steps]
    sampled = [_split(e.output, e.result.sampled) for e in steps]
    return packed(
        (
            len(entries),
            others,
            [(e.start_s, e.answered_s) for e in steps],
            _outputs([e.output for e in steps]),
            [_answers(r) for r in results],
            _timings([r.timing for r in results]),
            [names for names, _ in sampled],
            [tokens for _, tokens in sampled],
        )
    )


def unpack_entries(content: bytes) -> tuple[Entry, ...]:
    """The entries that `pack_entries` was given."""
    count, others, times, outputs, answers, timings, names, tokens = unpacked(content)
    entries: list[Any] = [None] * count
    for at, other in others:
        entries[at] = CommandEntry(*other) if type(other) is tuple else other
    if times:
        rows = len(times)
        decisions = _outputs_of(rows, *outputs)
        numbers, logprobs, graphs = zip(*answers, strict=True)
        sampled = list(map(_joined, decisions, names, tokens))
        results = _results_of(rows, numbers, sampled, _timings_of(rows, *timings), logprobs, graphs)
        starts, ends = zip(*times, strict=True)
        steps = iter(_steps_of(rows, starts, ends, decisions, results))
        entries = [next(steps) if e is None else e for e in entries]
    return tuple(entries)


class PackedEntries(Sequence[Entry]):
    """Entries of a run; equal to, and read like, the tuple of them. Immutable, any thread may read.

    Args:
        pieces: of PIECE entries each.
        rest: the entries after them.
    """

    __slots__ = ("_pieces", "_recent", "_rest")

    def __init__(self, pieces: tuple[bytes, ...], rest: tuple[Entry, ...]) -> None:
        self._pieces, self._rest = pieces, rest
        self._recent: dict[int, tuple[Entry, ...]] = {}  # replaced, never changed: readers of several threads share it

    def _piece(self, number: int) -> tuple[Entry, ...]:
        if number == len(self._pieces):
            return self._rest
        recent = self._recent
        found = recent.get(number)
        if found is None:
            found = unpack_entries(self._pieces[number])
            self._recent = dict(list(recent.items())[1 - _KEPT_PIECES :]) | {number: found}
        return found

    def __len__(self) -> int:
        return PIECE * len(self._pieces) + len(self._rest)

    def __iter__(self) -> Iterator[Entry]:
        for content in self._pieces:
            yield from unpack_entries(content)
        yield from self._rest

    @overload
    def __getitem__(self, at: SupportsIndex) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self[n] for n in range(*at.indices(len(self))))
        place = at.__index__()
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"entry {at} of {len(self)}")
        return self._piece(place // PIECE)[place % PIECE]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedEntries | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedEntries:
        return self
