"""Before the running pass: who may take a seat or blocks from a running request.

    priority    the head of the queue takes from a request that is worse by a whole level, the worst first
    fair share  the head of the tenant with the least service takes from a tenant above its share

Decide, then apply: nobody is preempted unless the beneficiary can join with what that frees.
"""

from __future__ import annotations

from core.admission_pass import Quote, join, memory_refusal, never_resumes, quote
from core.fair_share import above_share_of_blocks, above_share_of_seats, share_of
from core.outputs import BoundBy
from core.policies.queue_order import PriorityOrder
from core.preemption import preempt
from core.request import Request
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan


def reclaim(state: SchedulerState, plan: StepPlan, *, known_only: bool = False) -> None:
    """Let queued requests take back what their policy grants them (called where `state.may_reclaim`).

    Args:
        known_only: leave out requests that arrived since the latest decision.
    """
    if not len(state.queue) or state.batch_rule.fixed:
        return
    if isinstance(state.order, PriorityOrder):
        _by_priority(state, plan, state.order, known_only)
    else:
        _by_share(state, plan, known_only)


def _head(state: SchedulerState, plan: StepPlan, known_only: bool) -> Request | None:
    queued = state.queue.ordered(state.ledger.over_quota(plan.now))
    return next((r for r in queued if not known_only or r.arrival_index < state.boundary_arrivals), None)


def _shortage(state: SchedulerState, plan: StepPlan, request: Request) -> tuple[Quote, bool, int] | None:
    """Price of joining now, whether a seat is missing and how many blocks are; None if nothing or the wrong thing is."""
    budget = plan.budget - len(state.rows) if state.batch_rule.splits_prompts(state.config) else plan.budget
    if plan.budget <= 0 or never_resumes(state, request):
        return None
    price = quote(state, request, max(budget, 1))
    if not isinstance(price, Quote):
        return None
    seat = state.num_running >= state.config.max_num_seqs
    refusal = memory_refusal(state, plan, request, price)
    if (refusal is None and not seat) or (refusal is not None and refusal.bound is not BoundBy.MEMORY):
        return None
    leave = state.admission_rule.blocks_to_leave(state.config, state.kv.num_blocks, state.num_running)
    missing = max(price.blocks + leave - state.kv.num_available, 0)
    return price, seat, missing


def _by_priority(state: SchedulerState, plan: StepPlan, order: PriorityOrder, known_only: bool) -> None:
    config = state.config
    while True:
        head = _head(state, plan, known_only)
        if head is None or (found := _shortage(state, plan, head)) is None:
            return
        level = order.level(head, config)
        worse = [
            r
            for r in state.running()
            if r.priority > head.priority and order.level(r, config) >= level + 1 and r.request_id not in plan.fresh
        ]
        worse.sort(key=lambda r: (r.priority, state.victim_rule.key(r, state.kv)), reverse=True)
        if not _take(state, plan, head, worse, found, "priority"):
            return


def _by_share(state: SchedulerState, plan: StepPlan, known_only: bool) -> None:
    head = _head(state, plan, known_only)
    if head is None or (found := _shortage(state, plan, head)) is None:
        return
    price, seat, missing = found
    account = state.tracks[head.request_id].account
    rich: set[str] = set()
    if seat:
        above = above_share_of_seats(state) - {head.tenant}
        within = account.running + 1 <= share_of(state, head.tenant, float(state.config.max_num_seqs))
        lone = account.running == 0 and any(state.ledger.account(name).running > 1 for name in above)
        if not within and not lone:
            return
        rich = above if within else {name for name in above if state.ledger.account(name).running > 1}
    if missing:
        live = state.kv.live_by_tenant.get(head.tenant, 0)
        if live + price.blocks > share_of(state, head.tenant, float(state.kv.num_blocks)):
            return
        above = above_share_of_blocks(state) - {head.tenant}
        rich = rich & above if seat else above
    _take(state, plan, head, _richest_first(state, plan, rich, bool(missing)), found, "fair share")


def _richest_first(state: SchedulerState, plan: StepPlan, rich: set[str], keep_share: bool) -> list[Request]:
    """Requests of tenants above their share, the richest tenant's first; with `keep_share` only what is above it."""
    senior = state.senior()
    excess = {name: state.ledger.account(name).running / state.ledger.account(name).settings.weight for name in rich}
    candidates = [r for r in state.running() if r.tenant in rich and r is not senior and r.request_id not in plan.fresh]
    candidates.sort(key=lambda r: (excess[r.tenant], state.victim_rule.key(r, state.kv)), reverse=True)
    if not keep_share:
        return candidates
    left = {name: float(state.kv.live_by_tenant.get(name, 0)) for name in rich}
    share = {name: share_of(state, name, float(state.kv.num_blocks)) for name in rich}
    out: list[Request] = []
    for request in candidates:
        if left[request.tenant] > share[request.tenant]:
            out.append(request)
            left[request.tenant] -= state.kv.num_exclusive(request.request_id)
    return out


def _take(
    state: SchedulerState,
    plan: StepPlan,
    head: Request,
    candidates: list[Request],
    found: tuple[Quote, bool, int],
    reason: str,
) -> bool:
    """Preempt the first candidates until the head can join, and let it join; False with nothing changed if it cannot."""
    price, seat, missing = found
    victims: list[Request] = []
    gain = 0
    for request in candidates:
        if victims and gain >= missing:
            break
        victims.append(request)
        gain += state.kv.num_exclusive(request.request_id)
    if not victims or gain < missing or (seat and state.num_running - len(victims) >= state.config.max_num_seqs):
        return False
    for victim in victims:
        event = preempt(state, victim, head.request_id, reason, plan.now, plan=plan)
        state.pending.events.append(event)
    fresh = quote(state, head, max(min(plan.budget, price.tokens), 1))
    if isinstance(fresh, Quote) and memory_refusal(state, plan, head, fresh) is None:
        join(state, plan, head, fresh)
        return True
    return False
