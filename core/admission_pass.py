"""Second half of a decision: which waiting requests join.

    for request in queue order:   seat?  budget?  tenant's quota?  blocks?
        all yes  ->  table, seat, first chunk
        quota    ->  its tenant is skipped, the others go on
        blocks   ->  head of line: stop, or look `lookahead` further, each of which overtakes the blocked ones

No request joins in a step in which blocks were taken from a running one, because what was just freed is
needed by those that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.outputs import BoundBy, NewRequestData
from core.plain_admission import Refusal, admit_plain, memorise, refused_again, short_of_blocks
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan
from core.story_words import broken


@dataclass(slots=True)
class Quote:
    """What an admission would cost.

    Attributes:
        hits: cached blocks that hold the head of its tokens.
        start: tokens already in the cache (hits, or all that comes back from the swap space).
        tokens: query tokens of its first step.
        hold: token slots of its table.
        blocks: available blocks that it uses up.
    """

    hits: Sequence[int]
    start: int
    tokens: int
    hold: int
    blocks: int
    swapped: bool


def quote(state: SchedulerState, request: Request, budget: int) -> Quote | Refusal:
    """Price an admission under `budget` tokens (at least 1), before looking at memory."""
    kv, config = state.kv, state.config
    swapped = kv.is_swapped(request.request_id)
    hits: Sequence[int] = () if swapped else kv.match(request)
    start = request.num_computed_tokens if swapped else len(hits) * kv.block_size
    tokens = request.num_tokens - start
    if state.batch_rule.splits_prompts(config):
        tokens = min(tokens, budget, config.long_prefill_token_threshold or tokens)
    elif tokens > budget:
        if tokens <= config.max_num_batched_tokens:
            return Refusal(BoundBy.BUDGET, f"its {tokens} tokens run whole, {budget} tokens of the budget are left")
        tokens = budget
    hold = state.admission_rule.tokens_to_hold(request, start + tokens, state.max_model_len)
    return Quote(hits, start, tokens, hold, kv.blocks_needed(hits, hold), swapped)


def memory_refusal(state: SchedulerState, plan: StepPlan, request: Request, price: Quote) -> Refusal | None:
    """Why the blocks of `price` cannot be had now; None if they can."""
    kv = state.kv
    account = state.tracks[request.request_id].account
    quota = account.settings.max_blocks
    if quota is not None:
        live = kv.live_by_tenant.get(request.tenant, 0)
        if live + price.blocks > quota:
            return Refusal(BoundBy.QUOTA, f"needs {price.blocks} blocks, tenant {account.name} holds {live} of {quota}")
    return short_of_blocks(state, plan, price.blocks)


def never_resumes(state: SchedulerState, request: Request) -> str:
    """Why a queued request can never have its context in the cache again; "" if it can.

    Only a request that has already yielded tokens gets here: what never fits is refused when it is submitted.
    """
    need = state.kv.blocks_for(request.num_tokens)
    quota = state.tracks[request.request_id].account.settings.max_blocks
    if need > state.kv.num_blocks:
        return f"its context needs {need} blocks, the pool has {state.kv.num_blocks}"
    if quota is not None and need > quota:
        return f"its context needs {need} blocks, the quota of tenant {request.tenant} is {quota}"
    return ""


def join(state: SchedulerState, plan: StepPlan, request: Request, price: Quote) -> None:
    """Give a queued request its blocks, its seat and its first tokens."""
    kv = state.kv
    track = state.tracks[request.request_id]
    if price.swapped:
        copies = kv.swap_in(request, price.hold, state.step)
        if copies is None:
            raise broken(request, f"{price.blocks} blocks were available and then not")
        plan.swap_in += copies
    else:
        if kv.admit(request, price.hits, price.hold, state.step) is None:
            raise broken(request, f"{price.blocks} blocks were available and then not")
        request.num_cached_tokens = price.start
        if not request.num_preemptions and kv.caches(request) and not state.batch_rule.fixed:
            state.counters.queried_tokens += request.num_prompt_tokens
            state.counters.cached_tokens += price.start
            track.account.queried_tokens += request.num_prompt_tokens
            track.account.hit_tokens += price.start
    request.num_computed_tokens = price.start
    resumed = state.seat(request, plan.now)
    track.why = ""
    output = request.output_token_ids
    blocks = kv.block_ids(request.request_id)
    plan.new_requests.append(
        NewRequestData(
            request_id=request.request_id,
            token_ids=request.prompt_token_ids + tuple(output) if output else request.prompt_token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            block_ids=blocks,
            sampling=request.sampling,
            sampling_seed=track.sampling_seed,
            resumed_by_swap=price.swapped,
        )
    )
    (plan.resumed if resumed else plan.admitted).append(request.request_id)
    plan.fresh.add(request.request_id)
    plan.joins.append((request, resumed, price.start, price.swapped))
    decodes = price.swapped and price.tokens == 1 and price.start >= request.num_prompt_tokens
    plan.run(request, price.tokens, not decodes)
    if state.order.by_tenant or state.ledger.has_quotas:
        plan.settle_entries()  # the next pick depends on it


def admit_waiting(state: SchedulerState, plan: StepPlan, *, known_only: bool = False) -> None:
    """Let waiting requests join in the order of the policy until something runs out.

    Args:
        known_only: leave out requests that arrived since the latest decision.
    """
    if not len(state.queue) or refused_again(state, plan):
        return
    if state.is_plain and admit_plain(state, plan):
        return
    blocked = state.ledger.over_quota(plan.now)
    walk = _Walk(state, plan, blocked)
    again = True
    while again:
        again = False
        for request in state.queue.ordered(blocked):
            if (known_only and request.arrival_index >= state.boundary_arrivals) or request.request_id in walk.tried:
                continue
            again = walk.visit(request)
            if again or walk.done:
                break
    plan.settle_entries()
    _conclude(state, plan, walk.cause, blocked)


class _Walk:
    """One walk along the queue.

    Attributes:
        blocked: tenants at a quota, with the quota in words.
        skipped: requests that lacked blocks or budget and may be overtaken by those behind them.
        cause: the first refusal that was not a quota: what kept the batch from being larger.
        done: nothing further may join.
    """

    def __init__(self, state: SchedulerState, plan: StepPlan, blocked: dict[str, str]) -> None:
        self.state = state
        self.plan = plan
        self.blocked = blocked
        self.skipped: list[Request] = []
        self.tried: set[str] = set()
        self.cause: Refusal | None = None
        self.done = False

    def visit(self, request: Request) -> bool:
        """Try one request; True if the order of the queue has changed and must be read again."""
        state, plan = self.state, self.plan
        if request.status is RequestStatus.PREEMPTED and (gone := never_resumes(state, request)):
            event = state.end(request, RequestStatus.FINISHED, FinishReason.CAPACITY, plan.now, gone)
            state.pending.events.append(event)
            return False
        refusal = _try(state, plan, request)
        if refusal is None:
            if state.ledger.has_quotas:
                self.blocked.update(state.ledger.over_quota(plan.now))
            return self._count_overtaking(request)
        self.tried.add(request.request_id)
        plan.pass_over(request, refusal.bound, refusal.detail)
        if refusal.bound is BoundBy.QUOTA:
            self.blocked[request.tenant] = refusal.detail
            return False
        self.cause = self.cause or refusal
        self.skipped.append(request)
        hopeless = refusal.bound is BoundBy.SEATS or plan.budget <= 0 or plan.took_back or bool(plan.stalled)
        self.done = hopeless or len(self.skipped) > state.config.lookahead or self._someone_is_due()
        return False

    def _count_overtaking(self, joined: Request) -> bool:
        """Book the overtaking that an admission was; True if it used up somebody's patience with the order."""
        for request in self.skipped:
            request.num_overtaken += 1
        self.done = bool(self.skipped) and self._someone_is_due()
        if not self.state.order.by_prefix:
            return False
        older = [r for r in self.state.queue.oldest(joined.arrival_index) if r not in self.skipped]
        for request in older:
            request.num_overtaken += 1
        bound = self.state.config.max_wait_overtakes
        return any(r.num_overtaken >= bound for r in older)

    def _someone_is_due(self) -> bool:
        bound = self.state.config.max_overtakes
        return any(r.num_overtaken >= bound for r in self.skipped)


def _try(state: SchedulerState, plan: StepPlan, request: Request) -> Refusal | None:
    """Admit the request, or say why not."""
    seats, running = state.config.max_num_seqs, state.num_running
    price = quote(state, request, max(plan.budget, 1))
    memory = None if isinstance(price, Refusal) else memory_refusal(state, plan, request, price)
    if running >= seats:
        plan.full_batch = plan.full_batch or (memory is not None and memory.bound is BoundBy.MEMORY)
        return Refusal(BoundBy.SEATS, f"waits for a seat: {running} of {seats} taken")
    if memory is not None:
        if isinstance(price, Quote) and memory.bound is BoundBy.MEMORY and not price.hits and not price.swapped:
            memorise(state, plan, request, price.tokens, price.blocks)
        return memory
    if plan.stalled:
        return Refusal(BoundBy.MEMORY, f"{len(plan.stalled)} running requests wait for blocks, so none joins")
    if plan.took_back:
        return Refusal(BoundBy.MEMORY, "running requests were short of memory in this step, so none joins")
    if plan.budget <= 0:
        return Refusal(BoundBy.BUDGET, f"all {state.config.max_num_batched_tokens} tokens of the budget are given away")
    if isinstance(price, Refusal):
        return price
    join(state, plan, request, price)
    return None


def _conclude(state: SchedulerState, plan: StepPlan, cause: Refusal | None, blocked: dict[str, str]) -> None:
    """Say what kept the batch from being larger."""
    if not len(state.queue):
        return
    if cause is not None:
        plan.bound = cause.bound
        plan.full_batch = plan.full_batch or cause.bound is BoundBy.MEMORY
        return
    note_quota(state, plan, blocked)


def note_quota(state: SchedulerState, plan: StepPlan, blocked: dict[str, str]) -> None:
    """Nothing but quotas kept the batch from being larger: say so, for the head of the queue at least."""
    if not blocked or not len(state.queue):
        return
    plan.bound = BoundBy.QUOTA
    for request in state.queue.preview(1) if not plan.passed_over else ():
        if request.tenant in blocked:
            plan.pass_over(request, BoundBy.QUOTA, blocked[request.tenant])
