"""Requests as rows of a snapshot, one by one or, for all that run, by columns.

kept while the same requests run   id, tenant, hue, arrival, prompt, limit, source
read for every picture             the rest, column by column; of a block table, which only grows, its length
made by the first reader           the rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any
from zlib import crc32

from core.engine_commands import Submit
from core.on_demand import RowsOnDemand
from core.request import Request, RequestStatus
from core.slots import by_columns, by_slots
from core.snapshot import RequestView

_view = by_slots(RequestView)
_views = by_columns(RequestView)
_FIELDS = [f.name for f in fields(RequestView)]
_BLOCKS, _TAIL = _FIELDS.index("block_ids"), _FIELDS.index("text_tail")
_output, _spans = attrgetter("output_token_ids"), attrgetter("preempted_spans_s")
_priority, _computed, _cached = attrgetter("priority"), attrgetter("num_computed_tokens"), attrgetter("num_cached_tokens")
_preemptions, _admitted, _first_token = (
    attrgetter("num_preemptions"),
    attrgetter("admitted_time_s"),
    attrgetter("first_token_time_s"),
)
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


def _made(count: int, columns: Sequence[Any], tails: Callable[[], Sequence[str]]) -> tuple[RequestView, ...]:
    before, (tables, lengths), after = columns[:_BLOCKS], columns[_BLOCKS], columns[_BLOCKS + 1 :]
    block_ids = [tuple(ids[:length]) for ids, length in zip(tables, lengths, strict=True)]
    texts = _TAIL - _BLOCKS - 1  # its place among those after the block ids
    return tuple(_views(count, *before, block_ids, *after[:texts], tails(), *after[texts + 1 :]))


class RunningRows:
    """Makes the rows of the running requests; what does not change is kept from one picture to the next.

    Args:
        hue, source: of a request id.
    """

    def __init__(self, hue: Callable[[str], int], source: Callable[[str], str]) -> None:
        self._hue, self._source = hue, source
        self._requests: Sequence[Request] = ()
        self._ids: tuple[str, ...] = ()
        self._kept: tuple[list[int], list[int], list[str], list[str], list[float], list[int]] = ([], [], [], [], [], [])
        self._lives: tuple[list[Any], ...] = ()  # cached tokens, preemptions, admission, first token, spans
        self._preemptions = -1  # counter of the scheduler for which `_lives` holds

    def ids(self, requests: Sequence[Request]) -> tuple[str, ...]:
        """Ids of the requests; also takes up their unchanging columns."""
        if requests != self._requests:
            self._requests = requests
            self._preemptions = -1
            self._ids = tuple([r.request_id for r in requests])
            self._kept = (
                [len(r.prompt_token_ids) for r in requests],
                [r.sampling.max_tokens for r in requests],
                [r.tenant for r in requests],
                [self._source(i) for i in self._ids],
                [r.arrival_time_s for r in requests],
                [self._hue(i) for i in self._ids],
            )
        return self._ids

    def rows(
        self,
        requests: Sequence[Request],
        now_s: float,
        planned: tuple[Sequence[int], Sequence[bool]],
        tables: Sequence[Sequence[int]],
        tails: Callable[[], Sequence[str]],
        preemptions: int,
    ) -> RowsOnDemand:
        """One row a request, as it is now; what changes is read now, the rows are made by whoever looks at them.

        Args:
            planned: scheduled tokens, and whether they are a prefill, of each request in the latest step.
            tables: block ids of each request; such a list only grows.
            tails: gives the end of each text.
            preemptions: how many there have been of any request: a request that came back is another row.
        """
        ids = self.ids(requests)
        if preemptions != self._preemptions:
            first_tokens = list(map(_first_token, requests))
            self._lives = (
                list(map(_cached, requests)), list(map(_preemptions, requests)), list(map(_admitted, requests)),
                first_tokens, list(map(tuple, map(_spans, requests))),
            )  # fmt: skip
            self._preemptions = -1 if None in first_tokens else preemptions
        prompts, limits, tenants, sources, arrivals, hues = self._kept
        cached, lost, admitted, first_tokens, spans = self._lives
        columns = (
            ids, repeat(RequestStatus.RUNNING.value), tenants, list(map(_priority, requests)), hues, arrivals,
            [now_s - a for a in arrivals], prompts, list(map(len, map(_output, requests))), limits,
            list(map(_computed, requests)), cached, *planned, lost, (tables, list(map(len, tables))), repeat(""), repeat(""),
            repeat(""), sources, admitted, first_tokens, repeat(None), spans,
        )  # fmt: skip
        return RowsOnDemand(len(ids), partial(_made, len(ids), columns, tails))


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
