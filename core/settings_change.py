"""Changing the settings of a running scheduler: check everything, then apply, and lose nothing.

knobs   every live request must still be able to run, or the change is refused
cache   another size empties the pool: running requests are preempted for recompute, and one that can never
        fit the new pool ends with CAPACITY and the tokens it has
"""

from __future__ import annotations

from core.admission_pass import never_resumes
from core.config import CacheConfig, SchedulerConfig, check_pair
from core.errors import ConfigError
from core.kv_cache_manager import KVCacheManager, resets_pool
from core.outputs import RequestEvent
from core.policies.batching import BATCH_RULES
from core.preemption import preempt
from core.request import FinishReason, Request, RequestStatus
from core.request_checks import never_fits
from core.scheduler_state import SchedulerState


def change_config(state: SchedulerState, config: SchedulerConfig, now: float) -> list[RequestEvent]:
    """Apply new knobs; preempt, the most junior first, whoever is above a new limit.

    Raises:
        ConfigError: if the knobs do not go with the cache or a live request could never run again.
    """
    check_pair(config, state.cache)
    for request in state.requests.values():
        found = never_fits(request, config, state.cache, state.max_model_len)
        if found is not None:
            raise ConfigError(
                f"these settings would leave request {request.request_id} ({request.status}) behind for ever: {found[1]};"
                " cancel it or let it end first"
            )
    batch = state.fixed
    if batch is not None and (not BATCH_RULES[config.batch_policy].fixed or config.max_num_batched_tokens < batch.rows):
        state.close_fixed()
    state.adopt(config, now)
    events: list[RequestEvent] = []
    while state.num_running > config.max_num_seqs:
        events.append(_preempt_junior(state, state.running(), f"max_num_seqs is now {config.max_num_seqs}", now))
    for tenant in config.tenants:
        while mine := [r for r in state.running() if r.tenant == tenant.name]:
            live = state.kv.live_by_tenant.get(tenant.name, 0)
            if tenant.max_seqs is not None and len(mine) > tenant.max_seqs:
                reason = f"the seat quota of tenant {tenant.name} is now {tenant.max_seqs}"
            elif tenant.max_blocks is not None and live > tenant.max_blocks and len(mine) > 1:
                reason = f"the block quota of tenant {tenant.name} is now {tenant.max_blocks}"
            else:
                break
            events.append(_preempt_junior(state, mine, reason, now))
    return events


def change_cache(state: SchedulerState, cache: CacheConfig, now: float) -> list[RequestEvent]:
    """Apply checked cache settings; see `Scheduler.set_cache`."""
    if not resets_pool(state.cache, cache):
        state.kv.apply_toggles(cache)
        state.cache = cache
        return []
    events = lose_kv(state, now, "the pool gets another size")
    evictions, refaults = state.kv.pool.num_evictions, state.kv.pool.num_refaults
    state.cache = cache
    state.kv = KVCacheManager(cache, state.kv_bytes_per_token)
    state.kv.pool.num_evictions, state.kv.pool.num_refaults = evictions, refaults
    for request in list(state.requests.values()):
        found = never_fits(request, state.config, cache, state.max_model_len)
        message = found[1] if found is not None else never_resumes(state, request)
        if message:
            events.append(state.end(request, RequestStatus.FINISHED, FinishReason.CAPACITY, now, message))
    return events


def lose_kv(state: SchedulerState, now: float, reason: str) -> list[RequestEvent]:
    """All KV is gone, on the device and on the host: preempt every running request for recompute, forget the index."""
    if state.fixed is not None:
        state.close_fixed()
    running = sorted(state.running(), key=state.rank)
    events = [preempt(state, request, "", reason, now, may_swap=False) for request in running]
    for request in state.preempted.values():
        if state.kv.is_swapped(request.request_id):
            request.num_computed_tokens = 0
            state.tell(request, now, "preempted", f"{reason}; what was swapped out is lost and will be recomputed")
    state.kv.clear_index()
    state.pending.released.clear()
    state.pending.swap_out.clear()
    return events


def _preempt_junior(state: SchedulerState, candidates: list[Request], reason: str, now: float) -> RequestEvent:
    return preempt(state, max(candidates, key=state.rank), "", reason, now)
