"""The queue of waiting and preempted requests: binary heaps that are read in order without being changed.

One heap a group (a tenant where tenants matter, else one for all). `ordered` walks the heaps lazily:

    frontier = {root};  repeat: take the smallest of the frontier, yield it, add its two children

so the first k requests cost O(k log n), whatever waits behind them. Removal only forgets the entry; stale
ones are dropped when they reach the top. One walk may be under way at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator
from itertools import islice

from core.config import SchedulerConfig
from core.policies.queue_order import Key, QueueOrder
from core.request import Request, RequestStatus

PREFIX_WINDOW = 128  # longest prefix match looks at this many of the oldest requests, as SGLang does
_Entry = tuple[Key, int, Request]


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
        self._heaps: dict[str, list[_Entry]] = {}
        self._entries: dict[str, _Entry] = {}
        self._window: list[Request] = []
        self._num_pushed = 0
        self._num_held = 0  # entries in the heaps, an upper bound: pops are not counted

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
        heapq.heappush(self._heaps.setdefault(request.tenant if self._grouped else "", []), entry)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._entries[request.request_id]

    def rekey(self, request: Request) -> None:
        """Read the key again after a change of priority."""
        self.remove(request)
        self.push(request)

    def head(self) -> Request | None:
        """The first request where one heap holds all of them; None if the queue is empty or kept by tenant."""
        heap, entries = self._heaps.get(""), self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2].request_id) is entry:
                return entry[2]
            heapq.heappop(heap)
        return None

    def ordered(self, blocked_tenants: Container[str] = ()) -> Iterator[Request]:
        """Yield requests in order; tenants in `blocked_tenants` are skipped, also those added during the walk.

        The request just yielded may be removed; nothing may be pushed before the walk ends.
        """
        if self._num_held > 2 * len(self._entries) + 64:
            self._compact()
        if self._order.by_prefix:
            return self._by_prefix(blocked_tenants)
        if not self._grouped:
            heap = self._heaps.get("")
            return self._walk(heap) if heap else iter(())
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
        walks = {name: self._walk(heap) for name, heap in self._heaps.items()}
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
        source = self._merged(blocked) if self._grouped else self._walk(self._heaps.get("", []))
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

    def _walk(self, heap: list[_Entry]) -> Iterator[Request]:
        entries, pop = self._entries, heapq.heappop
        while heap:
            top = heap[0]
            if entries.get(top[2].request_id) is top:
                yield top[2]
                if entries.get(top[2].request_id) is top:
                    break  # it stays, so what follows is read without changing the heap
            pop(heap)
        size = len(heap)
        frontier = [(heap[child], child) for child in (1, 2) if child < size]
        heapq.heapify(frontier)
        while frontier:
            entry, at = pop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < size:
                    heapq.heappush(frontier, (heap[child], child))
            if entries.get(entry[2].request_id) is entry:
                yield entry[2]

    def _entries_key(self, request: Request) -> Key:
        entry = self._entries.get(request.request_id)
        return (*entry[0], entry[1]) if entry else self._order.key(request, self._config)

    def _compact(self) -> None:
        """Rebuild the heaps once most of what they hold is stale."""
        entries = self._entries
        for name, heap in list(self._heaps.items()):
            live = [e for e in heap if entries.get(e[2].request_id) is e]
            heapq.heapify(live)
            if live:
                self._heaps[name] = live
            else:
                del self._heaps[name]
        self._num_held = len(entries)
