"""The common admission in one piece: first requests of the queue that were never run, find nothing cached and meet no quota.

    head of the queue, cold:   blocks for its first chunk?   table, seat, chunk; next head
                               not enough, or no budget      refused, and nobody behind it is tried
    anything else (a hit, a resume, a full house, blocks just taken back)       the general walk goes on from here

A decision runs between two forward passes, when none of this is in the processor's cache, so what it costs is mostly the
amount of code and of objects that it touches. `core.admission_pass` alone would decide the same; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.config import AdmissionMoment
from core.outputs import BoundBy, NewRequestData
from core.prefix_hash import PrefixChain
from core.request import Request, RequestStatus
from core.scheduler_state import HeadMemo, SchedulerState
from core.slots import by_slots
from core.step_plan import StepPlan
from core.story_words import broken

_new_request = by_slots(NewRequestData)


@dataclass(slots=True)
class Refusal:
    """Why a request does not join in this step."""

    bound: BoundBy
    detail: str


def short_of_blocks(state: SchedulerState, plan: StepPlan, blocks: int) -> Refusal | None:
    """Why `blocks` blocks are not there for a newcomer; None if they are."""
    kv = state.kv
    available = kv.num_available
    leave = state.admission_rule.blocks_to_leave(state.config, kv.num_blocks, state.num_running) + plan.reserve_blocks
    if blocks <= available - leave:
        return None
    short = blocks - available + leave
    kept = f", {leave} kept for running requests" if leave else ""
    return Refusal(BoundBy.MEMORY, f"needs {blocks} blocks, {available} available{kept}: {short} missing")


def refused_again(state: SchedulerState, plan: StepPlan) -> bool:
    """True if the head of the queue stands as it was refused before and is still short of blocks."""
    memo = state.head_memo
    if memo is None or memo.config is not state.config or memo.kv is not state.kv or plan.budget <= memo.tokens:
        return False
    if plan.took_back or plan.stalled or state.num_running >= state.config.max_num_seqs:
        return False
    head = state.queue.head()
    if head is not memo.request:
        return False
    if memo.first_key is not None and state.kv.pool.lookup(memo.first_key) is not None:
        return False
    refusal = short_of_blocks(state, plan, memo.blocks)
    if refusal is None:
        return False
    plan.pass_over(head, refusal.bound, refusal.detail)
    plan.bound, plan.full_batch = refusal.bound, True
    return True


def memorise(state: SchedulerState, plan: StepPlan, request: Request, tokens: int, blocks: int) -> None:
    """Keep the price of a head that had no hit and was refused for memory, where nothing but the head decides."""
    config = state.config
    plain = not (state.order.by_tenant or state.order.by_prefix or state.ledger.has_quotas or config.lookahead)
    whole_queue = config.admission_moment is AdmissionMoment.STEP_BOUNDARY
    if plain and whole_queue and tokens < plan.budget:
        state.head_memo = HeadMemo(request, state.kv.first_key(request), tokens, blocks, config, state.kv)


def admit_plain(state: SchedulerState, plan: StepPlan) -> bool:
    """Admit from the head of the queue (where `state.is_plain`); False if the general walk has to go on.

    Those who join are found first and get their blocks in one allocation.
    """
    if plan.took_back or plan.stalled:
        return False
    queue, kv, config = state.queue, state.kv, state.config
    size, lookup = kv.block_size, kv.pool.lookup
    most = config.long_prefill_token_threshold or config.max_num_batched_tokens
    budget, seats = plan.budget, config.max_num_seqs - state.num_running
    room = kv.pool.num_available - plan.reserve_blocks
    joining: list[Request] = []
    chains: list[PrefixChain | None] = []
    chunks: list[int] = []
    needs: list[int] = []
    plain = True
    tokens = blocks = 0
    while (request := queue.head()) is not None:
        if request.status is not RequestStatus.WAITING or seats <= 0:
            plain = False
            break
        length = len(request.prompt_token_ids)
        chain = kv.chain_of(request)
        if chain is not None and length > size and lookup(chain.key(0)) is not None:
            plain = False
            break
        tokens = min(length, most, budget) if budget > 0 else 1
        blocks = -(-tokens // size)
        if budget <= 0 or blocks > room:
            break
        queue.remove(request)
        joining.append(request)
        chains.append(chain)
        chunks.append(tokens)
        needs.append(blocks)
        budget -= tokens
        seats -= 1
        room -= blocks
    if joining:
        _join_cold(state, plan, joining, chains, chunks, needs)
    if request is None or not plain:
        return plain
    refusal = short_of_blocks(state, plan, blocks) if blocks > room else None
    if refusal is not None:
        memorise(state, plan, request, tokens, blocks)
    elif blocks > room:
        return False
    else:
        refusal = Refusal(BoundBy.BUDGET, f"all {config.max_num_batched_tokens} tokens of the budget are given away")
    plan.pass_over(request, refusal.bound, refusal.detail)
    plan.bound = refusal.bound
    plan.full_batch = plan.full_batch or refusal.bound is BoundBy.MEMORY
    return True


def _join_cold(
    state: SchedulerState,
    plan: StepPlan,
    joining: list[Request],
    chains: list[PrefixChain | None],
    chunks: list[int],
    needs: list[int],
) -> None:
    """Blocks, seats and first chunks for requests that were taken from the queue and found nothing cached."""
    tables = state.kv.admit_cold(joining, chains, needs, state.step)
    if tables is None:
        raise broken(joining[0], f"{sum(needs)} blocks were available and then not")
    plan.settle_entries()
    tracks, counters, now = state.tracks, state.counters, plan.now
    for request, chain, tokens, table in zip(joining, chains, chunks, tables, strict=True):
        request_id, prompt = request.request_id, request.prompt_token_ids
        track = tracks[request_id]
        if chain is not None:
            counters.queried_tokens += len(prompt)
            track.account.queried_tokens += len(prompt)
        state.seat_new(request, track, now)
        plan.new_requests.append(
            _new_request(request_id, prompt, len(prompt), tuple(table), request.sampling, track.sampling_seed, False)
        )
        plan.admitted.append(request_id)
        plan.joins.append((request, False, 0, False))
        track.high_water_tokens = tokens
        track.account.charge(tokens)
    plan.fresh.update(plan.admitted)
    plan.run_fresh(joining, chunks)
