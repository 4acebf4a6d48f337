"""Request-level batching: the baseline that iteration-level batching is measured against.

    collect from the queue -> admit whole -> run the rectangle -> hold every row until the longest member ends

Each row holds blocks for the longest prompt plus the longest output of its batch, because a rectangular cache
has one length for all. A member that ends yields no more tokens, but its row is still computed and its blocks
stay until the batch ends. The prefix cache is not read: a rectangle cannot skip columns of one row.
"""

from __future__ import annotations

from core.admission_pass import Quote, join, never_resumes, note_quota
from core.fixed_rows import FixedBatch
from core.outputs import BoundBy
from core.policies.memory import worst_case_tokens
from core.request import FinishReason, Request, RequestStatus
from core.running_pass import decode_budget, plan_catching_up, plan_decodes
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan


def plan_fixed(state: SchedulerState, plan: StepPlan) -> None:
    """Decide a step under BatchPolicy.FIXED."""
    if state.fixed is None:
        if state.num_running:
            plan_decodes(state, plan, decode_budget(state, plan))
            plan_catching_up(state, plan, plan.budget)
            _wait_for_batch(state, plan, "requests admitted under another batch policy still run")
            return
        _collect(state, plan)
    batch = state.fixed
    if batch is None:
        return
    batch.skip_padding()
    columns = batch.next_columns(plan.budget)
    if batch.in_prefill:
        plan.chosen = []
        for request in batch.members:
            tokens = batch.tokens_in(request, columns) if request.status is RequestStatus.RUNNING else 0
            if tokens > 0:
                plan.run(request, tokens)
        plan.settle_entries()
    else:
        plan_decodes(state, plan, plan.budget)
    batch.columns += columns
    plan.padded = (batch.rows, columns, batch.columns)
    if not plan.fresh:
        _wait_for_batch(state, plan, f"the fixed batch of {batch.rows} is held until its longest member ends")


def _collect(state: SchedulerState, plan: StepPlan) -> None:
    """Form a batch from the head of the queue: as many rows as seats, budget, quotas and rectangular memory allow."""
    config, kv = state.config, state.kv
    seats = min(config.max_num_seqs, plan.budget)
    chosen: list[Request] = []
    blocked = state.ledger.over_quota(plan.now)
    stopped = False
    for request in state.queue.ordered(blocked):
        if request.status is RequestStatus.PREEMPTED and (gone := never_resumes(state, request)):
            event = state.end(request, RequestStatus.FINISHED, FinishReason.CAPACITY, plan.now, gone)
            state.pending.events.append(event)
            continue
        if stopped := len(chosen) >= seats:
            plan.bound = BoundBy.SEATS if seats == config.max_num_seqs else BoundBy.BUDGET
            plan.pass_over(request, plan.bound, f"the fixed batch has its {seats} rows")
            break
        quota = _quota_refusal(state, chosen, request)
        if quota:
            blocked[request.tenant] = quota
            plan.pass_over(request, BoundBy.QUOTA, quota)
            continue
        blocks = kv.blocks_for(_row_tokens(state, [*chosen, request])) * (len(chosen) + 1)
        if stopped := blocks > kv.num_available:
            plan.bound, plan.full_batch = BoundBy.MEMORY, True
            detail = f"{len(chosen) + 1} rows would need {blocks} blocks, {kv.num_available} available"
            plan.pass_over(request, BoundBy.MEMORY, detail)
            break
        chosen.append(request)
    if chosen:
        _start(state, plan, chosen)
    if not stopped:
        note_quota(state, plan, blocked)


def _start(state: SchedulerState, plan: StepPlan, chosen: list[Request]) -> None:
    """Give every row its blocks and its seat."""
    kv = state.kv
    hold = _row_tokens(state, chosen)
    for request in chosen:
        if kv.is_swapped(request.request_id):
            kv.swap.give_back(request.request_id)
    for request in chosen:
        join(state, plan, request, Quote((), 0, 0, hold, kv.blocks_for(hold), swapped=False))
    plan.clear_entries()
    state.fixed = FixedBatch(chosen)


def _row_tokens(state: SchedulerState, members: list[Request]) -> int:
    """Slots of one row of the rectangle: longest context now + longest output still to come."""
    width = max(r.num_tokens for r in members)
    return width + max(worst_case_tokens(r, state.max_model_len) - r.num_tokens for r in members)


def _quota_refusal(state: SchedulerState, chosen: list[Request], request: Request) -> str:
    """Which quota of its tenant one more row would break; "" if none."""
    settings = state.tracks[request.request_id].account.settings
    rows = 1 + sum(1 for r in chosen if r.tenant == request.tenant)
    if settings.max_seqs is not None and rows > settings.max_seqs:
        return f"tenant {request.tenant} has {rows - 1} of {settings.max_seqs} seats"
    for tenant in {r.tenant for r in [*chosen, request]}:
        limit = state.ledger.account(tenant).settings.max_blocks
        own = sum(1 for r in [*chosen, request] if r.tenant == tenant)
        blocks = own * state.kv.blocks_for(_row_tokens(state, [*chosen, request]))
        if limit is not None and blocks > limit:
            return f"the rows of tenant {tenant} would hold {blocks} of its {limit} blocks"
    return ""


def _wait_for_batch(state: SchedulerState, plan: StepPlan, why: str) -> None:
    for request in state.queue.preview(1):
        plan.bound = BoundBy.POLICY
        plan.pass_over(request, BoundBy.POLICY, why)
