"""The order in which cached blocks that no request holds are overwritten.

    LRU   one line:   [released longest ago, ..., released last]
    LFU   one line for each number of uses, the smallest number first, LRU within a line

Both answer without changing anything (`first`) and then change (`take`), so that an allocation can be planned
whole before its first part is done.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from core.config import EvictionPolicy

exhaust = deque[object](maxlen=0).extend
"""Runs an iterator to its end in C: bulk operations on blocks sit on the critical path of each token."""


class EvictionOrder(Protocol):
    """Cached blocks without a holder, the next one to be overwritten first.

    Attributes:
        size: number of blocks in the order.
    """

    size: int

    def __iter__(self) -> Iterator[int]: ...

    def first(self, count: int, but: Collection[int] = ()) -> list[int]:
        """The next `count` blocks (fewer if there are not as many), leaving out `but`."""
        ...

    def extend(self, block_ids: Sequence[int], uses: Sequence[int]) -> None:
        """Append blocks that were just released, in this order; `uses` by block."""
        ...

    def take(self, overwritten: Sequence[int], woken: Sequence[int], uses: Sequence[int]) -> None:
        """Take out what `first` gave, and blocks that a request shares again; `uses` by block, as when appended."""
        ...


class LruOrder:
    """A line of places. A block that is woken leaves a stale place behind, which is skipped when it comes first.

    Place number n is `_line[n - _base]`; it is valid if `_place[block] == n`. With no stale place, which is the
    common case, the answer is a slice of the line. (Arrays, not lists: a slice of numbers lies in a few cache
    lines, while a list would lead to one object somewhere in memory for each block.)
    """

    __slots__ = ("_base", "_head", "_line", "_place", "_stale", "size")

    def __init__(self, num_blocks: int) -> None:
        self.size = 0
        self._line = array("q")
        self._head = 0  # places before this index are done with
        self._base = 0  # number of the place at index 0
        self._place = array("q", [-1]) * num_blocks
        self._stale = 0

    def __iter__(self) -> Iterator[int]:
        place, head = self._place, self._head
        return (b for number, b in enumerate(self._line[head:], self._base + head) if place[b] == number)

    def first(self, count: int, but: Collection[int] = ()) -> list[int]:
        if not self._stale and not but:
            return self._line[self._head : self._head + count].tolist()
        return list(islice((b for b in self if b not in but), count))

    def extend(self, block_ids: Sequence[int], uses: Sequence[int]) -> None:
        place = self._place
        for number, block_id in enumerate(block_ids, self._base + len(self._line)):
            place[block_id] = number
        self._line.extend(block_ids)
        self.size += len(block_ids)

    def take(self, overwritten: Sequence[int], woken: Sequence[int], uses: Sequence[int]) -> None:
        place, line = self._place, self._line
        for block_id in woken:
            place[block_id] = -1
        self._stale += len(woken)
        self.size -= len(woken) + len(overwritten)
        left = len(overwritten)
        if not self._stale:
            self._head += left
        while left and self._stale:
            if place[line[self._head]] == self._base + self._head:
                left -= 1
            else:
                self._stale -= 1
            self._head += 1
            if not self._stale:
                self._head += left
        if self._head > len(place) or self._stale > self.size + 64:
            self._compact()

    def _compact(self) -> None:
        """Forget the places that are done with or stale; happens once in a while, at a cost of O(blocks)."""
        line = array("q", self)
        self._base += self._head
        self._head = self._stale = 0
        self._line = line
        for number, block_id in enumerate(line, self._base):
            self._place[block_id] = number


class LfuOrder:
    """One line for each number of uses."""

    __slots__ = ("_lines", "size")

    def __init__(self) -> None:
        self.size = 0
        self._lines: dict[int, OrderedDict[int, None]] = {}

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._lines[uses] for uses in sorted(self._lines))

    def first(self, count: int, but: Collection[int] = ()) -> list[int]:
        return list(islice((b for b in self if b not in but), count))

    def extend(self, block_ids: Sequence[int], uses: Sequence[int]) -> None:
        for block_id in block_ids:
            self._lines.setdefault(uses[block_id], OrderedDict())[block_id] = None
        self.size += len(block_ids)

    def take(self, overwritten: Sequence[int], woken: Sequence[int], uses: Sequence[int]) -> None:
        self.size -= len(overwritten) + len(woken)
        for block_id in chain(overwritten, woken):
            line = self._lines[uses[block_id]]
            del line[block_id]
            if not line:
                del self._lines[uses[block_id]]


def eviction_order(policy: EvictionPolicy, num_blocks: int) -> EvictionOrder:
    """An empty order of the policy for blocks 0 to num_blocks - 1."""
    return LfuOrder() if policy is EvictionPolicy.LFU else LruOrder(num_blocks)
