"""Requests as rows of a snapshot."""

from __future__ import annotations

from zlib import crc32

from core.engine_commands import Submit
from core.request import Request, RequestStatus
from core.slots import by_slots
from core.snapshot import RequestView

_view = by_slots(RequestView)
_GOLDEN_TURN = 137.507764  # degrees; spreads consecutive numbers evenly over the colour circle


def hue_of(request_id: str) -> int:
    """Colour of a request on every page, 0-359; ids that differ in their number alone get hues far apart."""
    digits = request_id.rpartition("-")[2]
    number = (
        int(digits)
        if digits.isascii() and digits.isdigit() and len(digits) < 12
        else crc32(request_id.encode("utf-8", "replace"))
    )
    return int(number * _GOLDEN_TURN) % 360


def _preempted_spans(request: Request, now_s: float) -> tuple[tuple[float, float], ...]:
    """Spans without blocks; that of a request which is preempted now began with the latest such event of its story."""
    closed = tuple(request.preempted_spans_s)
    if request.status is not RequestStatus.PREEMPTED:
        return closed
    since_s = next((event.time_s for event in reversed(request.story) if event.kind == "preempted"), now_s)
    return (*closed, (since_s, now_s))


def live_row(
    request: Request,
    now_s: float,
    hue: int,
    source: str,
    scheduled_tokens: int = 0,
    is_prefill: bool = False,
    block_ids: tuple[int, ...] = (),
    why: str = "",
    text_tail: str = "",
) -> RequestView:
    """The row of a request that is waiting, running or preempted."""
    return _view(
        request.request_id,
        request.status.value,
        request.tenant,
        request.priority,
        hue,
        request.arrival_time_s,
        now_s - request.arrival_time_s,
        len(request.prompt_token_ids),
        len(request.output_token_ids),
        request.sampling.max_tokens,
        request.num_computed_tokens,
        request.num_cached_tokens,
        scheduled_tokens,
        is_prefill,
        request.num_preemptions,
        block_ids,
        "",
        why,
        text_tail,
        source,
        request.admitted_time_s,
        request.first_token_time_s,
        None,
        _preempted_spans(request, now_s),
    )


def ended_row(request: Request, hue: int, source: str, text_tail: str) -> RequestView:
    """The row of an ended request; its age is the time that it took."""
    ended_s = request.finished_time_s if request.finished_time_s is not None else request.arrival_time_s
    return RequestView(
        request_id=request.request_id,
        status=request.status.value,
        tenant=request.tenant,
        priority=request.priority,
        hue=hue,
        arrival_s=request.arrival_time_s,
        age_s=ended_s - request.arrival_time_s,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        max_tokens=request.sampling.max_tokens,
        computed_tokens=request.num_computed_tokens,
        cached_tokens=request.num_cached_tokens,
        scheduled_tokens=0,
        is_prefill=False,
        num_preemptions=request.num_preemptions,
        finish_reason=request.finish_reason.value if request.finish_reason else "",
        text_tail=text_tail,
        source=source,
        admitted_s=request.admitted_time_s,
        first_token_s=request.first_token_time_s,
        finished_s=request.finished_time_s,
        preempted_spans_s=tuple(request.preempted_spans_s),
    )


def refused_row(command: Submit, now_s: float) -> RequestView:
    """The row of a submission that was refused; the books fill in why."""
    max_tokens: object = getattr(command.sampling, "max_tokens", 0)
    return RequestView(
        request_id=command.request_id,
        status="refused",
        tenant=command.tenant,
        priority=command.priority,
        hue=hue_of(command.request_id),
        arrival_s=now_s,
        age_s=0.0,
        prompt_tokens=len(command.prompt_token_ids),
        output_tokens=0,
        max_tokens=max_tokens if isinstance(max_tokens, int) else 0,
        computed_tokens=0,
        cached_tokens=0,
        scheduled_tokens=0,
        is_prefill=False,
        num_preemptions=0,
        finish_reason="refused",
        source=command.source,
        finished_s=now_s,
    )
