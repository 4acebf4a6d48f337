"""The queue of waiting and preempted requests: binary heaps that are read in order without being changed.

One heap a group (a tenant where tenants matter, else one for all). `ordered` walks the heaps lazily:

    frontier = {root};  repeat: take the smallest of the frontier, yield it, add its two children

so the first k requests cost O(k log k), whatever waits behind them. Removal only forgets the entry; stale
ones are dropped when they reach the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator

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
        self._num_pushed = 0

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

    def ordered(self, blocked_tenants: Container[str] = ()) -> Iterator[Request]:
        """Yield requests in order; tenants in `blocked_tenants` are skipped, also those added during the walk.

        The request just yielded may be removed; nothing may be pushed before the walk ends.
        """
        self._compact()
        if self._order.by_prefix:
            return self._by_prefix(blocked_tenants)
        if not self._grouped:
            heap = self._heaps.get("")
            return self._walk(heap) if heap else iter(())
        return self._merged(blocked_tenants)

    def oldest(self, before_arrival: int) -> list[Request]:
        """Requests of the prefix window that arrived before arrival index `before_arrival`."""
        source = self._merged(()) if self._grouped else self._walk(self._heaps.get("", []))
        return [r for _, r in zip(range(PREFIX_WINDOW), source, strict=False) if r.arrival_index < before_arrival]

    def preview(self, limit: int) -> list[Request]:
        """The first `limit` requests as they would be tried now; under fair queueing with the charge each would cause."""
        if not self._order.by_tenant:
            out: list[Request] = []
            for request in self.ordered():
                if len(out) >= limit:
                    break
                out.append(request)
            return out
        config = self._config
        extra: dict[str, float] = {}

        def charged(tenant: str) -> float:
            return self._virtual_time(tenant) + extra.get(tenant, 0.0)

        out = []
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
        """Overtaken too often first, then preempted, then by cached tokens, then by arrival; then the rest by arrival."""
        source = self._merged(blocked) if self._grouped else self._walk(self._heaps.get("", []))
        window = [request for _, request in zip(range(PREFIX_WINDOW), source, strict=False)]
        bound = self._config.max_wait_overtakes

        def key(request: Request) -> Key:
            if request.num_overtaken >= bound:
                return (0, request.arrival_index)
            if request.status is RequestStatus.PREEMPTED:
                return (1, request.arrival_index)
            return (2, -self._match_tokens(request), request.arrival_index)

        window.sort(key=key)
        for request in window:
            if request.tenant not in blocked:
                yield request
        yield from source

    def _walk(self, heap: list[_Entry]) -> Iterator[Request]:
        entries, size = self._entries, len(heap)
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, at = heapq.heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < size:
                    heapq.heappush(frontier, (heap[child], child))
            if entries.get(entry[2].request_id) is entry:
                yield entry[2]

    def _entries_key(self, request: Request) -> Key:
        entry = self._entries.get(request.request_id)
        return (*entry[0], entry[1]) if entry else self._order.key(request, self._config)

    def _compact(self) -> None:
        """Drop stale entries at the top of each heap, and everywhere once most entries are stale."""
        entries = self._entries
        for name, heap in list(self._heaps.items()):
            while heap and entries.get(heap[0][2].request_id) is not heap[0]:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[name]
        total = sum(map(len, self._heaps.values()))
        if total > 64 and total > 2 * len(entries):
            for name, heap in list(self._heaps.items()):
                live = [e for e in heap if entries.get(e[2].request_id) is e]
                heapq.heapify(live)
                self._heaps[name] = live
