"""What others may read of a scheduler: sets, counters, views; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core.block_columns import BlockColumns, BlockMapOnDemand
from core.config import CacheConfig, SchedulerConfig
from core.kv_cache_manager import KVCacheManager
from core.request import Request
from core.scheduler_state import Counters, SchedulerState
from core.scheduler_views import tenant_views
from core.snapshot import BlockMapView, TenantView, Totals


class SchedulerReadout:
    """The reading half of `core.scheduler.Scheduler`."""

    _state: SchedulerState

    @property
    def config(self) -> SchedulerConfig:
        """The knobs in force."""
        return self._state.config

    @property
    def cache(self) -> CacheConfig:
        """The cache settings in force."""
        return self._state.cache

    @property
    def kv(self) -> KVCacheManager:
        """Block tables and pool, for reading."""
        return self._state.kv

    @property
    def max_model_len(self) -> int:
        """Most prompt and output tokens of a request."""
        return self._state.max_model_len

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an output unless the request ignores them."""
        return self._state.eos_token_ids

    @property
    def step(self) -> int:
        """Number of the latest decision; 0 before the first."""
        return self._state.step

    @property
    def requests(self) -> Mapping[str, Request]:
        """All live requests by id."""
        return MappingProxyType(self._state.requests)

    def has_id(self, request_id: str) -> bool:
        """True while a request of this id is live, or has ended and its ending event has not been handed out."""
        return request_id in self._state.requests or request_id in self._state.pending.untold_ends()

    @property
    def running(self) -> list[Request]:
        """Requests that hold a seat."""
        return self._state.running()

    @property
    def preempted(self) -> list[Request]:
        """Requests that lost their blocks and wait to resume, in order of preemption."""
        return list(self._state.preempted.values())

    @property
    def num_running(self) -> int:
        """Number of requests that hold a seat."""
        return self._state.num_running

    @property
    def num_waiting(self) -> int:
        """Number of requests that were never admitted."""
        return self._state.num_waiting

    @property
    def counters(self) -> Counters:
        """Counts since the start, for reading."""
        return self._state.counters

    def waiting_order(self, now: float, limit: int) -> list[Request]:
        """The first `limit` waiting and preempted requests in the order in which they would be tried at `now`."""
        return self._state.queue.preview(limit)

    def why_waiting(self, request_id: str) -> str:
        """Why the request did not join when it was last looked at; "" if it was not."""
        track = self._state.tracks.get(request_id)
        return track.why if track else ""

    def slots_used(self) -> int:
        """`KVCacheManager.slots_used` from the columns of the decoding rows: no table is looked at."""
        state = self._state
        kv = state.kv
        tokens = sum(state.rows.computed) + sum([r.num_computed_tokens for r in state.catching_up])
        return tokens + sum([t.held_tokens for t in kv.held]) - kv.pool.num_extra_refs * kv.block_size

    def totals(self, worker_restarts: int = 0) -> Totals:
        """The counters as a snapshot holds them."""
        c = self._state.counters
        return Totals(
            submitted=c.submitted,
            finished=c.finished,
            cancelled=c.cancelled,
            refused=c.refused,
            preemptions=c.preemptions,
            prompt_tokens=c.prompt_tokens,
            output_tokens=c.output_tokens,
            cached_tokens=c.cached_tokens,
            queried_tokens=c.queried_tokens,
            worker_restarts=worker_restarts,
        )

    def tenants(self) -> tuple[TenantView, ...]:
        """Each tenant that was seen, with its weight, service and share of all service."""
        return tenant_views(self._state)

    def block_map(self) -> BlockMapView:
        """Every physical block as columns: owner, fill, references, flags, age."""
        return BlockColumns.of(self._state).view()

    def block_map_on_demand(self) -> BlockMapView:
        """The same, made by the first reader: for pictures, most of which nobody looks at so closely."""
        return BlockMapOnDemand(BlockColumns.of(self._state))

    def has_work(self) -> bool:
        """True while a request is live or an event has not been handed out."""
        return bool(self._state.requests) or bool(self._state.pending.events)
