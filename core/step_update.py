"""After the forward pass: tokens become output, blocks become reusable, requests end.

    computed += scheduled;   full blocks -> prefix index;   a row that was complete gets its one new token

    decoding rows   by columns: slots set and events made without bytecode for a row, only rows that end are visited
    other rows      one by one (prompt chunks, a row that recomputes); so are all rows where `text_rows` is not given

Order of the checks on a new token, once min_tokens are there: end token or stop token, stop string, max_tokens,
model length. The token that ends the output counts as one output token (its text is not shown).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter

from core.errors import ExecutorError
from core.eviction import exhaust
from core.outputs import ModelRunnerOutput, RequestEvent, SchedulerOutput
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.slots import by_columns, by_slots
from core.step_plan import Flight
from core.step_quiet import fill_blocks

_event = by_slots(RequestEvent)
_events = by_columns(RequestEvent)
_status = attrgetter("status")
_output = attrgetter("output_token_ids")
_token_times = attrgetter("token_times_s")
_set_computed = Request.__dict__["num_computed_tokens"].__set__

TextStop = Callable[[Request, int], bool]
TextRows = Callable[[Sequence[str], Sequence[int]], tuple[list[str], Sequence[int]]]
"""(request ids, their new tokens) -> text that each row may show now, and the rows that completed a stop string."""


def apply_step(
    state: SchedulerState,
    flight: Flight,
    result: ModelRunnerOutput,
    now: float,
    text_stop: TextStop | None,
    text_rows: TextRows | None = None,
) -> list[RequestEvent]:
    """Book one step.

    A row whose request was cancelled or preempted after the decision is skipped and its token dropped.

    Args:
        text_stop: told each token of a row that is booked by itself; True if it completes a stop string.
        text_rows: the same for many rows at once, and their texts. Where there is a `text_stop` and no `text_rows`, all
            rows are booked one by one.

    Raises:
        ExecutorError: if the tokens are not exactly those of the rows that sample, in row order.
    """
    decision = flight.output
    tokens = _check_sampled(decision, result)
    rows = len(flight.decodes)
    together = rows > 1 and not result.logprobs and (text_rows is not None or text_stop is None)
    first = rows if together and _all_run(flight.decodes) else 0
    events = _book_decodes(state, flight, tokens[:first], now, text_rows) if first else []
    events += _book_rows(state, flight, first, tokens[first:], result, now, text_stop)
    state.counters.prompt_tokens += sum(compress(decision.num_scheduled_tokens, decision.is_prefill))
    state.rows.advance(all_ran=flight.all_decodes)
    for request in [r for r in state.catching_up if r.num_tokens - r.num_computed_tokens == 1 and r.output_token_ids]:
        state.caught_up(request)
    state.rows.refresh()
    return events


def _all_run(requests: Sequence[Request]) -> bool:
    """True if nobody was cancelled or preempted since the decision."""
    return list(map(_status, requests)).count(RequestStatus.RUNNING) == len(requests)


def _book_decodes(
    state: SchedulerState, flight: Flight, tokens: Sequence[int], now: float, text_rows: TextRows | None
) -> list[RequestEvent]:
    """Book the decoding rows: each has one new token that is not its first."""
    requests, tracks = flight.decodes, flight.decode_tracks
    rows = len(requests)
    ids = flight.output.request_ids[:rows]
    computed = [c + 1 for c in flight.output.num_computed_tokens[:rows]]
    exhaust(map(_set_computed, requests, computed))
    exhaust(map(list.append, map(_output, requests), tokens))
    exhaust(map(list.append, map(_token_times, requests), repeat(now)))
    fill_blocks(state, requests, computed)
    texts, stopped = text_rows(ids, tokens) if text_rows is not None else (repeat(""), ())
    events = _events(
        rows, ids, repeat("token"), repeat(now), repeat(state.step), tokens, texts, repeat(None), repeat(""), repeat(None)
    )
    state.counters.output_tokens += rows
    ending = [
        at
        for at, (count, token, track) in enumerate(zip(computed, tokens, tracks, strict=True))
        if count >= track.ends_at or token in track.stop_ids or at in stopped
    ]
    for at, end in reversed(_end_rows(state, flight, ending, tokens, stopped, now)):
        events.insert(at + 1, end)
    return events


def _end_rows(
    state: SchedulerState, flight: Flight, ending: Sequence[int], tokens: Sequence[int], stopped: Sequence[int], now: float
) -> list[tuple[int, RequestEvent]]:
    """End the rows of `ending` that have a reason to; (row, its event), rising rows."""
    ended = []
    for at in ending:
        has_stopped = tokens[at] in flight.decode_tracks[at].stop_ids or at in stopped
        event = _end(state, flight.decodes[at], has_stopped, now)
        if event is not None:
            ended.append((at, event))
    return ended


def _book_rows(
    state: SchedulerState,
    flight: Flight,
    first: int,
    tokens: Sequence[int],
    result: ModelRunnerOutput,
    now: float,
    text_stop: TextStop | None,
) -> list[RequestEvent]:
    """Book the rows from `first` on, one by one; `tokens` are those of the rows among them that sample."""
    decision = flight.output
    if first == len(decision.request_ids):
        return []
    logprobs, coming = dict(result.logprobs), iter(tokens)
    events: list[RequestEvent] = []
    kv, size, step = state.kv, state.kv.block_size, state.step
    tables, due = kv.tables, state.rows.due
    last_token_at = state.max_model_len - 1  # computed tokens of a request whose next token fills the model's length
    for request, track, count, start, samples, prefill in zip(
        chain(flight.decodes[first:], flight.entries),
        chain(flight.decode_tracks[first:], flight.entry_tracks),
        decision.num_scheduled_tokens[first:],
        decision.num_computed_tokens[first:],
        decision.samples[first:],
        decision.is_prefill[first:],
        strict=True,
    ):
        token = next(coming) if samples else -1
        if request.status is not RequestStatus.RUNNING:
            continue
        computed = start + count
        request.num_computed_tokens = computed
        if prefill:
            state.tell(request, now, "chunk", f"tokens {start} to {computed - 1} computed", count)
        request_id = request.request_id
        if count > 1 or computed % size == 0:
            table = tables[request_id]
            kv.publish(table, computed)
            if not prefill and computed >= table.capacity_tokens:
                due[request_id] = table
        if not samples:
            continue
        state.counters.output_tokens += 1
        output = request.output_token_ids
        output.append(token)
        request.token_times_s.append(now)
        events.append(_event(request_id, "token", now, step, token, "", None, "", logprobs.get(request_id)))
        if len(output) == 1:
            request.first_token_time_s = now
            state.tell(request, now, "first_token", f"{now - request.arrival_time_s:.3f} s after arrival", token)
        stopped = token in track.stop_ids
        if text_stop is not None and text_stop(request, token):
            stopped = True
        if stopped or len(output) >= track.max_tokens or computed >= last_token_at:
            end = _end(state, request, stopped, now)
            if end is not None:
                events.append(end)
    return events


def _end(state: SchedulerState, request: Request, stopped: bool, now: float) -> RequestEvent | None:
    """End a request that has its last token; None if it goes on (a stop below min_tokens)."""
    reason = _reason(request, stopped, state.max_model_len)
    if reason is None:
        return None
    full = reason is FinishReason.CAPACITY
    message = f"the model's length of {state.max_model_len} tokens is reached" if full else ""
    return state.end(request, RequestStatus.FINISHED, reason, now, message)


def _check_sampled(decision: SchedulerOutput, result: ModelRunnerOutput) -> tuple[int, ...]:
    """The sampled tokens in row order, once they are known to belong to the rows that sample."""
    expected = tuple(compress(decision.request_ids, decision.samples))
    found, tokens = zip(*result.sampled, strict=True) if result.sampled else ((), ())
    if result.step != decision.step or found != expected:
        odd = next(((a, b) for a, b in zip(expected, found, strict=False) if a != b), None)
        raise ExecutorError(
            f"step {decision.step} sampled for {len(expected)} rows, the executor answered step {result.step} with"
            f" {len(found)} tokens; first difference: {odd}"
        )
    return tokens


def _reason(request: Request, stopped: bool, max_model_len: int) -> FinishReason | None:
    """Why a request ends with the token that it was just given; None if it goes on."""
    count = len(request.output_token_ids)
    if stopped and count >= request.sampling.min_tokens:
        return FinishReason.STOP
    if count >= request.sampling.max_tokens:
        return FinishReason.LENGTH
    return FinishReason.CAPACITY if request.num_tokens >= max_model_len else None
