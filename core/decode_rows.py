"""Decoding requests as parallel columns: the fast path of a steady step."""

from __future__ import annotations

from core.kv_cache_manager import BlockTable
from core.request import Request


class DecodeRows:
    """Decoding requests as parallel columns, so that a steady step copies columns instead of visiting rows.

    Attributes:
        caps: token slots in each row's table; a row whose computed tokens reach it needs a block.
    """

    __slots__ = ("caps", "ids", "requests", "tables")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ids: list[str] = []
        self.tables: list[BlockTable] = []
        self.caps: list[int] = []

    def add(self, request: Request, table: BlockTable) -> None:
        """Append a row."""
        self.requests.append(request)
        self.ids.append(request.request_id)
        self.tables.append(table)
        self.caps.append(table.capacity_tokens)

    def remove(self, request: Request) -> bool:
        """Take a row out; False if the request is not here."""
        try:
            at = self.requests.index(request)
        except ValueError:
            return False
        del self.requests[at], self.ids[at], self.tables[at], self.caps[at]
        return True

    def regrown(self, request: Request) -> None:
        """Read the row's capacity again after its table has grown."""
        at = self.requests.index(request)
        self.caps[at] = self.tables[at].capacity_tokens
