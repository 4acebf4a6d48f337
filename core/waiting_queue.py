"""The queue of waiting and preempted requests: a line and a heap that are read in order without being changed.

One pair a group (a tenant where tenants matter, else one for all). What comes in order, as arrivals mostly do, stands in
the line; the rest in a binary heap. `ordered` merges the two, and walks the heap lazily:

    frontier = {root};  repeat: take the smallest of the frontier, yield it, add its two children

so the first k requests cost O(k log n), whatever waits behind them, and the head of an orderly queue O(1). Removal only
forgets the entry; stale ones are dropped when they reach the front. One walk may be under way at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterator
from itertools import islice

from core.config import SchedulerConfig
from core.policies.queue_order import Key, QueueOrder
from core.request import Request, RequestStatus

PREFIX_WINDOW = 128  # longest prefix match looks at this many of the oldest requests, as SGLang does
_Entry = tuple[Key, int, Request]


class _Group:
    """Entries in the order in which they came, smallest first, and those that came out of order."""

    __slots__ = ("heap", "line")

    def __init__(self) -> None:
        self.line: deque[_Entry] = deque()
        self.heap: list[_Entry] = []

    def push(self, entry: _Entry) -> None:
        if not self.line or self.line[-1] <= entry:
            self.line.append(entry)
        else:
            heapq.heappush(self.heap, entry)

    def first(self) -> _Entry | None:
        """The smallest entry, stale or not."""
        if not self.heap:
            return self.line[0] if self.line else None
        return min(self.heap[0], self.line[0]) if self.line else self.heap[0]

    def drop_first(self) -> None:
        """Forget the smallest entry."""
        if self.heap and (not self.line or self.heap[0] < self.line[0]):
            heapq.heappop(self.heap)
        else:
            self.line.popleft()

    def __iter__(self) -> Iterator[_Entry]:
        """All entries in order, read lazily."""
        return heapq.merge(self.line, self._heap_in_order()) if self.heap else iter(self.line)

    def _heap_in_order(self) -> Iterator[_Entry]:
        heap = self.heap
        frontier = [(heap[0], 0)]
        while frontier:
            entry, at = heapq.heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))
            yield entry


class WaitingQueue:
    """Requests that have no blocks, in the order of a policy.

    Args:
        order: the policy.
        grouped: keep one heap a tenant, so that a tenant at its quota can be skipped as a whole.
        virtual_time: service received by a tenant for its weight; read for orders by tenant.
        match_tokens: cached prefix tokens of a request; read for orders by prefix.
    """

    def __init__(
        self,
        order: QueueOrder,
        config: SchedulerConfig,
        *,
        grouped: bool,
        virtual_time: Callable[[str], float],
        match_tokens: Callable[[Request], int],
    ) -> None:
        self._order = order
        self._config = config
        self._grouped = grouped
        self._virtual_time = virtual_time
        self._match_tokens = match_tokens
        self._groups: dict[str, _Group] = {}
        self._entries: dict[str, _Entry] = {}
        self._window: list[Request] = []
        self._num_pushed = 0
        self._num_held = 0  # entries in the groups, stale ones included

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def requests(self) -> Iterator[Request]:
        """Yield all requests in no order."""
        return (entry[2] for entry in self._entries.values())

    def push(self, request: Request) -> None:
        """Put a request in; its key is read now."""
        self._num_pushed += 1
        self._num_held += 1
        entry = (self._order.key(request, self._config), self._num_pushed, request)
        self._entries[request.request_id] = entry
        name = request.tenant if self._grouped else ""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        group.push(entry)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._entries[request.request_id]

    def rekey(self, request: Request) -> None:
        """Read the key again after a change of priority."""
        self.remove(request)
        self.push(request)

    def head(self) -> Request | None:
        """The first request where one group holds all of them; None if the queue is empty or kept by tenant."""
        group = self._groups.get("")
        entry = self._live_first(group) if group is not None else None
        return entry[2] if entry is not None else None

    def ordered(self, blocked_tenants: Container[str] = ()) -> Iterator[Request]:
        """Yield requests in order; tenants in `blocked_tenants` are skipped, also those added during the walk.

        The request just yielded may be removed; nothing may be pushed before the walk ends.
        """
        if self._num_held > 2 * len(self._entries) + 64:
            self._compact()
        if self._order.by_prefix:
            return self._by_prefix(blocked_tenants)
        if not self._grouped:
            group = self._groups.get("")
            return self._walk(group) if group is not None else iter(())
        return self._merged(blocked_tenants)

    def oldest(self, before_arrival: int) -> list[Request]:
        """Requests that the present walk by prefix has looked at and that arrived before `before_arrival`."""
        return [r for r in self._window if r.arrival_index < before_arrival and r.request_id in self._entries]

    def preview(self, limit: int) -> list[Request]:
        """The first `limit` requests as they would be tried now; under fair queueing with the charge each would cause."""
        if self._order.by_prefix:
            return list(islice(self.ordered(), limit))
        if not self._order.by_tenant:  # whole at once: a sort costs less than a walk of some hundred entries
            return [entry[2] for entry in sorted(self._entries.values())[:limit]]
        config = self._config
        extra: dict[str, float] = {}

        def charged(tenant: str) -> float:
            return self._virtual_time(tenant) + extra.get(tenant, 0.0)

        out: list[Request] = []
        for request in self._merged((), charged):
            if len(out) >= limit:
                break
            out.append(request)
            extra[request.tenant] = extra.get(request.tenant, 0.0) + request.num_tokens / config.tenant(request.tenant).weight
        return out

    def _merged(self, blocked: Container[str], virtual_time: Callable[[str], float] | None = None) -> Iterator[Request]:
        fair = self._order.by_tenant
        clock = virtual_time or self._virtual_time
        walks = {name: self._walk(group) for name, group in self._groups.items()}
        heads = {name: head for name, walk in walks.items() if (head := next(walk, None)) is not None}
        while True:
            best: str | None = None
            best_key: Key = ()
            for name, head in heads.items():
                if name in blocked:
                    continue
                key = (clock(name), head.arrival_index) if fair else self._entries_key(head)
                if best is None or key < best_key:
                    best, best_key = name, key
            if best is None:
                return
            request = heads[best]
            following = next(walks[best], None)
            if following is None:
                del heads[best]
            else:
                heads[best] = following
            yield request

    def _by_prefix(self, blocked: Container[str]) -> Iterator[Request]:
        """By windows of the oldest: overtaken too often first, then preempted, then by cached tokens, then by arrival."""
        source = self._merged(blocked) if self._grouped else self._walk(self._groups.get("", _Group()))
        bound = self._config.max_wait_overtakes

        def key(request: Request) -> Key:
            if request.num_overtaken >= bound:
                return (0, request.arrival_index)
            if request.status is RequestStatus.PREEMPTED:
                return (1, request.arrival_index)
            return (2, -self._match_tokens(request), request.arrival_index)

        self._window = []
        while window := list(islice(source, PREFIX_WINDOW)):
            self._window += window
            for request in sorted(window, key=key):
                if request.tenant not in blocked:
                    yield request

    def _live_first(self, group: _Group) -> _Entry | None:
        """The smallest entry of a group that still waits; stale ones before it go."""
        entries = self._entries
        while (entry := group.first()) is not None and entries.get(entry[2].request_id) is not entry:
            group.drop_first()
            self._num_held -= 1
        return entry

    def _walk(self, group: _Group) -> Iterator[Request]:
        entries = self._entries
        while (top := self._live_first(group)) is not None:
            yield top[2]
            if entries.get(top[2].request_id) is top:
                break  # it stays, so what follows is read without changing anything
        if top is None:
            return
        for entry in group:
            if entry is not top and entries.get(entry[2].request_id) is entry:
                yield entry[2]

    def _entries_key(self, request: Request) -> Key:
        entry = self._entries.get(request.request_id)
        return (*entry[0], entry[1]) if entry else self._order.key(request, self._config)

    def _compact(self) -> None:
        """Rebuild the groups once most of what they hold is stale."""
        entries = self._entries
        self._groups = {}
        for entry in sorted(entries.values()):
            name = entry[2].tenant if self._grouped else ""
            self._groups.setdefault(name, _Group()).line.append(entry)
        self._num_held = len(entries)
