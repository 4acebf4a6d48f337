"""Booking of a step for a simulation: the same state afterwards as `core.step_update`, no events, decodes by columns.

    plain   a few checks and one event a row                about 2 us a token
    quiet   slots set and lists appended by column,         about 0.3 us a token
            only rows that end or fill a block are visited

It serves requests that end by length only (a simulated request ignores the model's end token and has no stop strings).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat

from core.errors import InvariantError
from core.eviction import exhaust
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState, Track
from core.step_plan import Flight

_SET_COMPUTED = Request.__dict__["num_computed_tokens"].__set__


def apply_quietly(state: SchedulerState, flight: Flight, tokens: Sequence[int], now: float) -> None:
    """Book one step; `tokens` are those of the rows that sample, in row order.

    Raises:
        InvariantError: for a request with tokens that end it.
    """
    decision = flight.output
    decodes, entries = flight.decodes, flight.entries
    rows = len(decodes)
    if rows:
        computed = [c + 1 for c in decision.num_computed_tokens[:rows]]
        exhaust(map(_SET_COMPUTED, decodes, computed))
        exhaust(map(list.append, [r.output_token_ids for r in decodes], tokens))
        exhaust(map(list.append, [r.token_times_s for r in decodes], repeat(now)))
        fill_blocks(state, decodes, computed)
        ending = [c >= t.ends_at for c, t in zip(computed, flight.decode_tracks, strict=True)]
        if True in ending:
            for request in compress(decodes, ending):
                _end(state, request, now)
    if entries:
        _entries(state, flight, tokens[rows:], now)
    state.counters.output_tokens += len(tokens)
    state.counters.prompt_tokens += sum(compress(decision.num_scheduled_tokens, decision.is_prefill))
    state.rows.advance(all_ran=flight.all_decodes)
    if state.catching_up:
        for request in [r for r in state.catching_up if r.num_tokens - r.num_computed_tokens == 1 and r.output_token_ids]:
            state.caught_up(request)
    state.rows.refresh()


def fill_blocks(state: SchedulerState, decodes: list[Request], computed: list[int]) -> None:
    """Publish the blocks that are full now, and note the rows that need another."""
    kv, due = state.kv, state.rows.due
    size, tables = kv.block_size, kv.tables
    for request, count in [(r, c) for r, c in zip(decodes, computed, strict=True) if not c % size]:
        table = tables[request.request_id]
        kv.publish(table, count)
        if count >= table.capacity_tokens:
            due[request.request_id] = table


def _entries(state: SchedulerState, flight: Flight, tokens: Sequence[int], now: float) -> None:
    """Rows with a token count of their own, as `core.step_update.apply_step` books them."""
    decision, kv = flight.output, state.kv
    first = len(flight.decodes)
    size, tables, due = kv.block_size, kv.tables, state.rows.due
    sampled = iter(tokens)
    for request, track, count, start, samples, prefill in zip(
        flight.entries,
        flight.entry_tracks,
        decision.num_scheduled_tokens[first:],
        decision.num_computed_tokens[first:],
        decision.samples[first:],
        decision.is_prefill[first:],
        strict=True,
    ):
        _check(request, track)
        computed = start + count
        request.num_computed_tokens = computed
        if count > 1 or computed % size == 0:
            table = tables[request.request_id]
            kv.publish(table, computed)
            if not prefill and computed >= table.capacity_tokens:
                due[request.request_id] = table
        if not samples:
            continue
        output = request.output_token_ids
        output.append(next(sampled))
        request.token_times_s.append(now)
        if len(output) == 1:
            request.first_token_time_s = now
        if computed >= track.ends_at:
            _end(state, request, now)


def _check(request: Request, track: Track) -> None:
    if track.stop_ids or request.status is not RequestStatus.RUNNING:
        raise InvariantError(
            f"request {request.request_id} has tokens that end it, or was cancelled: book the step by its events"
        )


def _end(state: SchedulerState, request: Request, now: float) -> None:
    """A request has its last token."""
    by_length = len(request.output_token_ids) >= request.sampling.max_tokens
    state.end(request, RequestStatus.FINISHED, FinishReason.LENGTH if by_length else FinishReason.CAPACITY, now)
