"""Host memory for the KV of preempted requests: a bounded pool of host blocks.

A host block that is read by `swap_in` in a step is not given out again before the next decision: the
copies out of a step run before its copies in, so a block reused at once would be overwritten unread.

    free -> held by a request -> settling (until the next decision) -> free
"""

from __future__ import annotations

from core.errors import InvariantError


class SwapSpace:
    """`num_blocks` host blocks of the same size as a device block."""

    __slots__ = ("_free", "_settling", "_tables", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._settling: list[int] = []
        self._tables: dict[str, list[int]] = {}

    @property
    def num_used(self) -> int:
        """Host blocks that hold a preempted request's KV, or are being read back in this step."""
        return self.num_blocks - len(self._free)

    @property
    def num_settling(self) -> int:
        """Host blocks that become free with the next decision."""
        return len(self._settling)

    def holds(self, request_id: str) -> bool:
        """True if the request's KV lies here."""
        return request_id in self._tables

    def take(self, request_id: str, count: int) -> list[int] | None:
        """Give `count` host blocks to a request; None, with nothing changed, if there are fewer."""
        if request_id in self._tables:
            raise InvariantError(f"request {request_id} is swapped out twice")
        free = self._free
        if count > len(free):
            return None
        taken = free[len(free) - count :]
        del free[len(free) - count :]
        self._tables[request_id] = taken
        return taken

    def give_back(self, request_id: str) -> list[int]:
        """Return the request's host blocks, logical order; they become free with the next `settle`."""
        blocks = self._tables.pop(request_id)
        self._settling += blocks
        return blocks

    def settle(self) -> None:
        """Free what the previous step read: called at the start of each decision."""
        if self._settling:
            self._free += self._settling
            self._settling = []

    def clear(self) -> tuple[str, ...]:
        """Lose everything (the executor did); return the requests concerned."""
        lost = tuple(self._tables)
        self._tables.clear()
        self._settling = []
        self._free = list(range(self.num_blocks - 1, -1, -1))
        return lost

    def check(self) -> None:
        """Each host block is in one place.

        Raises:
            InvariantError: if one is lost or doubled.
        """
        seen = sorted(self._free + self._settling + [b for t in self._tables.values() for b in t])
        if seen != list(range(self.num_blocks)):
            raise InvariantError(f"host blocks lost or doubled: {seen} of {self.num_blocks}")
