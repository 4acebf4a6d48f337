"""After the forward pass: tokens become output, blocks become reusable, requests end.

    computed += scheduled;   full blocks -> prefix index;   a row that was complete gets its one new token

Order of the checks on a new token, once min_tokens are there: end token or stop token, stop string, max_tokens,
model length. The token that ends the output counts as one output token (its text is not shown).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, compress

from core.errors import ExecutorError
from core.outputs import ModelRunnerOutput, RequestEvent, SchedulerOutput
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.slots import by_slots
from core.step_plan import Flight

_event = by_slots(RequestEvent)
TextStop = Callable[[Request, int], bool]


def apply_step(
    state: SchedulerState,
    flight: Flight,
    result: ModelRunnerOutput,
    now: float,
    text_stop: TextStop | None,
) -> list[RequestEvent]:
    """Book one step.

    A row whose request was cancelled or preempted after the decision is skipped and its token dropped.

    Raises:
        ExecutorError: if the tokens are not exactly those of the rows that sample, in row order.
    """
    decision = flight.output
    tokens = _check_sampled(decision, result)
    logprobs = dict(result.logprobs)
    events: list[RequestEvent] = []
    kv, size, step = state.kv, state.kv.block_size, state.step
    tables, rows, due = kv.tables, state.rows, state.rows.due
    last_token_at = state.max_model_len - 1  # computed tokens of a request whose next token fills the model's length
    num_output = 0
    for request, track, count, start, samples, prefill in zip(
        chain(flight.decodes, flight.entries),
        chain(flight.decode_tracks, flight.entry_tracks),
        decision.num_scheduled_tokens,
        decision.num_computed_tokens,
        decision.samples,
        decision.is_prefill,
        strict=True,
    ):
        token = next(tokens) if samples else -1
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
        num_output += 1
        output = request.output_token_ids
        output.append(token)
        request.token_times_s.append(now)
        events.append(_event(request_id, "token", now, step, token, "", None, "", logprobs.get(request_id)))
        if len(output) == 1:
            request.first_token_time_s = now
            state.tell(request, now, "first_token", f"{now - request.arrival_time_s:.6f} s after arrival", token)
        stopped = token in track.stop_ids
        if text_stop is not None and text_stop(request, token):
            stopped = True
        if stopped or len(output) >= track.max_tokens or computed >= last_token_at:
            reason = _reason(request, stopped, state.max_model_len)
            if reason is not None:
                full = reason is FinishReason.CAPACITY
                message = f"the model's length of {state.max_model_len} tokens is reached" if full else ""
                events.append(state.end(request, RequestStatus.FINISHED, reason, now, message))
    state.counters.output_tokens += num_output
    state.counters.prompt_tokens += sum(compress(decision.num_scheduled_tokens, decision.is_prefill))
    rows.advance(all_ran=flight.all_decodes)
    for request in [r for r in state.catching_up if r.num_tokens - r.num_computed_tokens == 1 and r.output_token_ids]:
        state.caught_up(request)
    rows.refresh()
    return events


def _check_sampled(decision: SchedulerOutput, result: ModelRunnerOutput) -> Iterator[int]:
    """The sampled tokens in row order, once they are known to belong to the rows that sample."""
    expected = [rid for rid, samples in zip(decision.request_ids, decision.samples, strict=True) if samples]
    found = [rid for rid, _ in result.sampled]
    if result.step != decision.step or found != expected:
        odd = next(((a, b) for a, b in zip(expected, found, strict=False) if a != b), None)
        raise ExecutorError(
            f"step {decision.step} sampled for {len(expected)} rows, the executor answered step {result.step} with"
            f" {len(found)} tokens; first difference: {odd}"
        )
    return iter([token for _, token in result.sampled])


def _reason(request: Request, stopped: bool, max_model_len: int) -> FinishReason | None:
    """Why a request ends with the token that it was just given; None if it goes on."""
    count = len(request.output_token_ids)
    if stopped and count >= request.sampling.min_tokens:
        return FinishReason.STOP
    if count >= request.sampling.max_tokens:
        return FinishReason.LENGTH
    return FinishReason.CAPACITY if request.num_tokens >= max_model_len else None
