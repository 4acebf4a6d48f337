"""Decoding requests as parallel columns, and the few of them that the next step must visit.

    requests  ids  computed          one entry a row; a steady step copies columns and visits no row
    due                              rows at the end of their last block (about rows / block_size of them)

A decision lends its columns to the step under way, so a change while they are lent starts new lists.
"""

from __future__ import annotations

from core.kv_cache_manager import BlockTable
from core.request import Request


class DecodeRows:
    """Requests that compute one token a step.

    Attributes:
        computed: computed tokens of each row, read again after each step.
        due: tables of the rows that need a block before their next token, by id.
    """

    __slots__ = ("_id_list", "_ids", "_lent", "computed", "due", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.computed: list[int] = []
        self.due: dict[str, BlockTable] = {}
        self._id_list: list[str] = []
        self._ids: tuple[str, ...] | None = ()
        self._lent = False

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the rows."""
        ids = self._ids
        if ids is None:
            ids = self._ids = tuple(self._id_list)
        return ids

    def lend(self) -> list[Request]:
        """The rows as they are now; the list never changes afterwards."""
        self._lent = True
        return self.requests

    def add(self, request: Request, table: BlockTable) -> None:
        """Append a row."""
        self._own()
        self.requests.append(request)
        self._id_list.append(request.request_id)
        self.computed.append(request.num_computed_tokens)
        if request.num_computed_tokens >= table.capacity_tokens:
            self.due[request.request_id] = table

    def remove(self, request: Request) -> bool:
        """Take a row out; False if the request is not here."""
        self.due.pop(request.request_id, None)
        try:
            at = self.requests.index(request)
        except ValueError:
            return False
        self._own()
        del self.requests[at], self._id_list[at], self.computed[at]
        return True

    def advance(self) -> None:
        """Read the computed tokens again, after a step was booked."""
        self.computed = [r.num_computed_tokens for r in self.requests]

    def _own(self) -> None:
        """Before a change: leave lent lists to their borrower."""
        self._ids = None
        if self._lent:
            self.requests = self.requests.copy()
            self._lent = False
