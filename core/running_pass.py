"""First half of a decision: what the running requests do.

    steady step:  rows that decode are columns; only those at the end of a block are visited,
                  about rows / block_size of them, and all get their block in one allocation

Everything else (a budget below the number of rows, memory trouble, prompts under way) takes the slow path,
which goes through the requests in order of seniority.
"""

from __future__ import annotations

from collections import deque

from core.preemption import Growth, grow
from core.request import Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan


def plan_decodes(state: SchedulerState, plan: StepPlan, budget: int) -> None:
    """One token for each decoding row, at most `budget` of them, the most senior first."""
    rows = state.rows
    if len(rows) > budget:
        chosen = state.by_seniority(rows.requests)[: max(budget, 0)]
        plan.chosen = []
        _grow_in_order(state, plan, [r for r in chosen if r.request_id in rows.due])
        plan.chosen = [r for r in chosen if r.status is RequestStatus.RUNNING and r.request_id not in plan.stalled]
    elif rows.due and not _grow_at_once(state, plan):
        _grow_in_order(state, plan, state.by_seniority([table.request for table in rows.due.values()]))
        if plan.stalled:
            plan.chosen = [r for r in rows.requests if r.request_id not in plan.stalled]
    plan.budget -= len(rows) if plan.chosen is None else len(plan.chosen)
    plan.settle_decodes()


def end_full(state: SchedulerState, plan: StepPlan) -> None:
    """End the rows whose next block cannot exist, before anything is decided on the seats and blocks that they hold."""
    most = state.kv.num_blocks
    for table in list(state.rows.due.values()):
        quota = state.tracks[table.request.request_id].account.settings.max_blocks
        if len(table.block_ids) >= (most if quota is None else min(quota, most)):
            grow(state, plan, table.request, table.request.num_computed_tokens + 1)


def plan_catching_up(state: SchedulerState, plan: StepPlan, budget: int) -> None:
    """Chunks of running prompts (and recomputes), the most senior first, at most `budget` tokens."""
    if not state.catching_up:
        return
    floor = plan.budget - budget
    splits = state.batch_rule.splits_prompts(state.config)
    threshold = state.config.long_prefill_token_threshold if splits else None
    for request in state.by_seniority(state.catching_up):
        left = plan.budget - floor
        if left <= 0:
            break
        if request.status is not RequestStatus.RUNNING or request.request_id in plan.fresh:
            continue
        tokens = min(request.num_tokens - request.num_computed_tokens, left)
        if threshold:
            tokens = min(tokens, threshold)
        tokens = _fit(state, plan, request, tokens)
        if tokens > 0:
            plan.run(request, tokens)
    plan.settle_entries()


def decode_budget(state: SchedulerState, plan: StepPlan) -> int:
    """Tokens that decodes may take: all, less one where the most senior request is a prompt that would get none."""
    budget = plan.budget
    if state.catching_up and len(state.rows) >= budget and state.senior() in state.catching_up:
        return budget - 1
    return budget


def _fit(state: SchedulerState, plan: StepPlan, request: Request, tokens: int) -> int:
    """Tokens of a chunk that get blocks: all, else what is available, else none (stalled or ended)."""
    outcome = grow(state, plan, request, request.num_computed_tokens + tokens)
    if outcome is Growth.READY:
        return tokens
    if outcome is Growth.ENDED:
        return 0
    kv = state.kv
    table = kv.tables[request.request_id]
    free = max(kv.num_available - plan.reserve_blocks, 0)
    quota = state.tracks[request.request_id].account.settings.max_blocks
    if quota is not None:
        free = min(free, max(quota - kv.live_by_tenant.get(request.tenant, 0), 0))
    fitting = min(tokens, table.capacity_tokens + free * kv.block_size - request.num_computed_tokens)
    if fitting > 0 and grow(state, plan, request, request.num_computed_tokens + fitting) is Growth.READY:
        return fitting
    plan.stalled.add(request.request_id)
    return 0


def _grow_at_once(state: SchedulerState, plan: StepPlan) -> bool:
    """One block for each row that is due, in a single allocation; False if memory or a quota is in the way."""
    due = state.rows.due
    if state.ledger.has_block_quotas:
        return False
    new = state.kv.grow_by_one(list(due.values()))
    if new is None:
        return False
    plan.grown.update(zip(due, zip(new, strict=True), strict=True))
    due.clear()
    return True


def _grow_in_order(state: SchedulerState, plan: StepPlan, requests: list[Request]) -> None:
    """One block for each request, the most senior first; juniors make room, or the request stalls or ends.

    As many as there are blocks for are served in one allocation; then one of them makes room, and so on.
    """
    kv, due = state.kv, state.rows.due
    queue = deque(requests)
    while queue:
        served: list[Request] = []
        free = 0 if state.ledger.has_block_quotas else kv.num_available
        while queue and len(served) < free:
            request = queue.popleft()
            if request.status is RequestStatus.RUNNING:
                served.append(request)
        new = kv.grow_by_one([kv.tables[r.request_id] for r in served]) if served else None
        if new is not None:
            for request, block_id in zip(served, new, strict=True):
                plan.grown[request.request_id] = (block_id,)
                del due[request.request_id]
        elif queue:
            request = queue.popleft()
            if request.status is not RequestStatus.RUNNING:
                continue
            if grow(state, plan, request, request.num_computed_tokens + 1) is Growth.STALLED:
                plan.stalled.add(request.request_id)
