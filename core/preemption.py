"""Taking blocks and seats back, and growing the tables of running requests.

    a table must grow  ->  blocks available?           take them
                           juniors hold enough?        preempt the victim policy's choice among them
                           neither                     stall: keep the blocks, run no token in this step
                           the whole pool is too small end with FinishReason.CAPACITY

A stalled request is the next victim of its seniors, so memory moves to the most senior one, which can always
go on. That is cheaper than the usual self-preemption: nothing is recomputed unless a senior needs it.
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum, auto
from operator import attrgetter

from core.config import PreemptionMode, VictimPolicy
from core.fair_share import growth_candidates
from core.outputs import Preemption, RequestEvent
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan
from core.story_words import block_words


class Growth(Enum):
    """What came of the wish for more blocks."""

    READY = auto()
    STALLED = auto()
    ENDED = auto()


def preempt(
    state: SchedulerState,
    victim: Request,
    beneficiary: str,
    reason: str,
    now: float,
    *,
    plan: StepPlan | None = None,
    may_swap: bool = True,
) -> RequestEvent:
    """Take the seat and all blocks of a running request and put it back into the queue.

    Under PreemptionMode.SWAP its computed blocks go to host memory if there is room; otherwise it recomputes.
    """
    track = state.tracks[victim.request_id]
    computed = victim.num_computed_tokens
    held = state.kv.block_ids(victim.request_id)
    state.unseat(victim)
    before = state.kv.num_available
    copies = None
    if may_swap and state.config.preemption_mode is PreemptionMode.SWAP:
        copies = state.kv.swap_out(victim, state.step)
    if copies is None:
        state.kv.release(victim.request_id, state.step)
        victim.num_computed_tokens = 0
    else:
        state.pending.swap_out += copies
    record = Preemption(
        step=state.step,
        victim=victim.request_id,
        beneficiary=beneficiary,
        blocks_freed=state.kv.num_available - before,
        tokens_lost=computed if copies is None else 0,
        bytes_swapped=len(copies or ()) * state.kv.block_bytes,
        reason=reason,
    )
    state.pending.preemptions.append(record)
    track.high_water_tokens = max(track.high_water_tokens, computed)
    track.preempted_at_s = now
    track.account.queued += 1
    victim.num_preemptions += 1
    victim.move_to(RequestStatus.PREEMPTED)
    state.preempted[victim.request_id] = victim
    state.queue.push(victim)
    state.counters.preemptions += 1
    fate = f"{computed} tokens to recompute" if copies is None else f"{len(copies)} blocks swapped out"
    why = f"{reason}, for {beneficiary or 'nobody'}"
    if plan is None:
        state.tell(victim, now, "preempted", f"{why}; {block_words(held)}; {fate}", computed)
    else:
        plan.losses.append((victim, why, held, fate, computed))
        plan.drop(victim)
        plan.took_back = True
    if state.fixed is not None and not state.fixed.num_live:
        state.close_fixed()
    return RequestEvent(victim.request_id, "preempted", now, state.step, message=why)


def juniors(state: SchedulerState, needer: Request, fresh: Container[str]) -> list[Request]:
    """Running requests that `needer` may take blocks from: all that rank behind it, but none admitted in this step."""
    if state.order.rank_field == "arrival_index":
        mine = needer.arrival_index
        behind = [r for r in state.running() if r.arrival_index > mine]
    else:
        key = state.rank(needer)
        behind = [r for r in state.running() if state.rank(r) > key]
    return [r for r in behind if r.request_id not in fresh] if fresh else behind


def _could_free(state: SchedulerState, candidates: list[Request], blocks: int) -> bool:
    """True if the candidates hold at least `blocks` blocks that nobody shares with them."""
    for request in candidates:
        blocks -= state.kv.num_exclusive(request.request_id)
        if blocks <= 0:
            return True
    return False


def _latest_junior(state: SchedulerState, plan: StepPlan, needer: Request, missing: int) -> Request | None:
    """The victim of the common case, in one pass: arrival order, latest arrival, and it alone holds enough."""
    if state.order.by_tenant or state.order.rank_field != "arrival_index":
        return None
    if state.victim_rule.value is not VictimPolicy.LATEST_ARRIVAL:
        return None
    latest = max(state.running(), key=attrgetter("arrival_index"))
    junior = latest.arrival_index > needer.arrival_index and latest.request_id not in plan.fresh
    return latest if junior and state.kv.num_exclusive(latest.request_id) >= missing else None


def make_room(state: SchedulerState, plan: StepPlan, needer: Request, blocks: int) -> bool:
    """Preempt until `blocks` are available for a running request; False if that cannot be reached."""
    kv = state.kv
    first = True
    while (missing := blocks - kv.num_available + plan.reserve_blocks) > 0:
        candidates: list[Request] = []
        if latest := _latest_junior(state, plan, needer, missing):
            candidates = [latest]
        elif state.order.by_tenant:
            candidates = growth_candidates(state, plan, needer, blocks)
        else:
            candidates = juniors(state, needer, plan.fresh)
        if not candidates:
            return False
        if first and latest is None and needer is not state.senior() and not _could_free(state, candidates, missing):
            return False
        first = False
        event = preempt(state, state.victim_rule.pick(candidates, state.kv), needer.request_id, "memory", plan.now, plan=plan)
        state.pending.events.append(event)
    return True


def make_quota_room(state: SchedulerState, plan: StepPlan, needer: Request, blocks: int) -> bool:
    """Preempt within the tenant until its quota leaves `blocks`; False if no junior of it is left."""
    limit = state.tracks[needer.request_id].account.settings.max_blocks
    live = state.kv.live_by_tenant
    while limit is not None and live.get(needer.tenant, 0) + blocks > limit:
        candidates = [r for r in juniors(state, needer, plan.fresh) if r.tenant == needer.tenant]
        if not candidates:
            return False
        event = preempt(
            state, state.victim_rule.pick(candidates, state.kv), needer.request_id, "block quota", plan.now, plan=plan
        )
        state.pending.events.append(event)
    return True


def grow(state: SchedulerState, plan: StepPlan, request: Request, tokens: int) -> Growth:
    """Make the table of a running request hold `tokens` tokens."""
    kv = state.kv
    table = kv.tables[request.request_id]
    total = kv.blocks_for(tokens)
    blocks = total - len(table.block_ids)
    if blocks <= 0:
        return Growth.READY
    account = state.tracks[request.request_id].account
    quota = account.settings.max_blocks
    if total > kv.num_blocks:
        return _end(state, plan, request, f"it needs {total} blocks, the pool has {kv.num_blocks}")
    if quota is not None and total > quota:
        return _end(state, plan, request, f"it needs {total} blocks, the quota of tenant {account.name} is {quota}")
    if not make_quota_room(state, plan, request, blocks) or not make_room(state, plan, request, blocks):
        return Growth.STALLED
    new = kv.grow(table, tokens)
    if new is None:
        return Growth.STALLED
    plan.grown[request.request_id] = tuple(new)
    state.rows.due.pop(request.request_id, None)
    return Growth.READY


def _end(state: SchedulerState, plan: StepPlan, request: Request, message: str) -> Growth:
    plan.drop(request)
    event = state.end(request, RequestStatus.FINISHED, FinishReason.CAPACITY, plan.now, message)
    state.pending.events.append(event)
    return Growth.ENDED
