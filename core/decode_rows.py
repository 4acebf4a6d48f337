"""Decoding requests as parallel columns, and the few of them that the next step must visit.

    requests  tracks  ids  computed       one entry a row; a steady step copies columns and visits no row
    due                                   rows at the end of their last block (about rows / block_size of them)

A row is found through its place and taken out by moving the last row there. A decision lends its columns to the
step under way, so a change while they are lent starts new lists.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from core.kv_cache_manager import BlockTable
from core.request import Request

T = TypeVar("T")


class DecodeRows(Generic[T]):
    """Requests that compute one token a step.

    Attributes:
        requests: the rows.
        tracks: what the scheduler keeps of each row.
        computed: computed tokens of each row.
        due: tables of the rows that need a block before their next token, by id.
    """

    __slots__ = ("_contexts", "_id_list", "_ids", "_lent", "_place", "computed", "due", "requests", "tracks")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.tracks: list[T] = []
        self.computed: list[int] = []
        self.due: dict[str, BlockTable] = {}
        self._id_list: list[str] = []
        self._ids: tuple[str, ...] | None = ()
        self._contexts: tuple[int, ...] | None = ()
        self._place: dict[str, int] = {}
        self._lent = False

    def __len__(self) -> int:
        return len(self.computed)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the rows."""
        ids = self._ids
        if ids is None:
            ids = self._ids = tuple(self._id_list)
        return ids

    @property
    def contexts(self) -> tuple[int, ...]:
        """Computed tokens of the rows."""
        contexts = self._contexts
        if contexts is None:
            contexts = self._contexts = tuple(self.computed)
        return contexts

    def lend(self) -> tuple[list[Request], list[T]]:
        """The rows and tracks as they are now; these lists never change afterwards."""
        self._lent = True
        return self.requests, self.tracks

    def add(self, request: Request, track: T, table: BlockTable) -> None:
        """Append a row."""
        self._own()
        request_id = request.request_id
        self._place[request_id] = len(self.requests)
        self.requests.append(request)
        self.tracks.append(track)
        self.computed.append(request.num_computed_tokens)
        self._id_list.append(request_id)
        if request.num_computed_tokens >= table.capacity_tokens:
            self.due[request_id] = table

    def remove(self, request: Request) -> bool:
        """Take a row out; False if the request is not here."""
        request_id = request.request_id
        self.due.pop(request_id, None)
        at = self._place.pop(request_id, None)
        if at is None:
            return False
        self._own()
        requests, tracks, computed, ids = self.requests, self.tracks, self.computed, self._id_list
        last = requests.pop(), tracks.pop(), computed.pop(), ids.pop()
        if at < len(ids):
            requests[at], tracks[at], computed[at], ids[at] = last
            self._place[last[3]] = at
        return True

    def advance(self, *, all_ran: bool) -> None:
        """One step was run by all rows, or by some: then what each has computed is read again."""
        self._contexts = None
        self.computed = [c + 1 for c in self.computed] if all_ran else [r.num_computed_tokens for r in self.requests]

    def refresh(self) -> None:
        """Prepare the columns of the next decision, while what they are made of is still in the processor's cache."""
        self._ids = tuple(self._id_list)
        self._contexts = tuple(self.computed)

    def _own(self) -> None:
        """Before a change: leave lent lists to their borrower."""
        self._ids = self._contexts = None
        if self._lent:
            self.requests = self.requests.copy()
            self.tracks = self.tracks.copy()
            self._lent = False
