"""After the forward pass: tokens become output, blocks become reusable, requests end.

    computed += scheduled;   full blocks -> prefix index;   a row that was complete gets its one new token

Order of the checks on a new token, once min_tokens are there: end token or stop token, stop string, max_tokens,
model length. The token that ends the output counts as one output token (its text is not shown).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core.errors import ExecutorError
from core.outputs import ModelRunnerOutput, RequestEvent, SchedulerOutput, TopLogprobs
from core.request import FinishReason, Request, RequestStatus
from core.scheduler_state import SchedulerState

TextStop = Callable[[Request, int], bool]


def apply_step(
    state: SchedulerState,
    rows: list[Request],
    decision: SchedulerOutput,
    result: ModelRunnerOutput,
    now: float,
    text_stop: TextStop | None,
) -> list[RequestEvent]:
    """Book one step; `rows` are the requests of the decision's rows.

    A row whose request was cancelled or preempted after the decision is skipped and its token dropped.

    Raises:
        ExecutorError: if the tokens are not exactly those of the rows that sample, in row order.
    """
    tokens = _check_sampled(decision, result)
    logprobs = dict(result.logprobs)
    events: list[RequestEvent] = []
    kv, size = state.kv, state.kv.block_size
    tables, due = kv.tables, state.rows.due
    num_output = 0
    for request, count, start, samples, prefill in zip(
        rows,
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
        if count > 1 or computed % size == 0:
            table = tables[request.request_id]
            kv.publish(table, computed)
            if not prefill and computed >= table.capacity_tokens:
                due[request.request_id] = table
        if samples:
            num_output += 1
            _append(state, request, token, now, logprobs, text_stop, events)
    state.counters.output_tokens += num_output
    state.counters.prompt_tokens += sum(
        [n for n, prefill in zip(decision.num_scheduled_tokens, decision.is_prefill, strict=True) if prefill]
    )
    state.rows.advance()
    for request in [r for r in state.catching_up if r.num_tokens - r.num_computed_tokens == 1 and r.output_token_ids]:
        state.caught_up(request)
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


def _append(
    state: SchedulerState,
    request: Request,
    token: int,
    now: float,
    logprobs: dict[str, TopLogprobs],
    text_stop: TextStop | None,
    events: list[RequestEvent],
) -> None:
    """Give a request its new token and end it if that was the last one."""
    output = request.output_token_ids
    output.append(token)
    request.token_times_s.append(now)
    request_id = request.request_id
    count = len(output)
    if count == 1:
        request.first_token_time_s = now
        state.tell(request, now, "first_token", f"{now - request.arrival_time_s:.6f} s after arrival", token)
    events.append(
        RequestEvent(request_id, "token", now, state.step, token, logprobs=logprobs.get(request_id) if logprobs else None)
    )
    params = request.sampling
    stopped = token in state.tracks[request_id].stop_ids
    if text_stop is not None and text_stop(request, token):
        stopped = True
    if stopped and count >= params.min_tokens:
        reason = FinishReason.STOP
    elif count >= params.max_tokens:
        reason = FinishReason.LENGTH
    elif request.num_tokens >= state.max_model_len:
        reason = FinishReason.CAPACITY
    else:
        return
    message = f"the model's length of {state.max_model_len} tokens is reached" if reason is FinishReason.CAPACITY else ""
    events.append(state.end(request, RequestStatus.FINISHED, reason, now, message))
