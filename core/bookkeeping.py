"""The engine's books: who asked, what became of them, and the events that still wait to be handed over.

    submitted = waiting + running + preempted + finished + cancelled + refused

The scheduler counts what it decides; what is refused before it sees it is counted here. A request leaves the
live books in the moment in which its ending event is written, so a view never shows it twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter

from core.errors import RequestRefused
from core.output_processor import OutputProcessor
from core.outputs import Preemption, RequestEvent, SchedulerOutput
from core.request import FinishReason, Request, RequestStatus
from core.scheduler import Scheduler
from core.scheduler_state import Counters
from core.slots import by_slots
from core.snapshot import RequestView, Totals
from core.snapshot_rows import ended_row, hue_of
from core.story import StoryArchive, story_of
from core.telemetry import Telemetry, WorkSums

SHOWN_ENDED = 50
SHOWN_PREEMPTIONS = 50
MESSAGE_STEPS = 500
_totals = by_slots(Totals)
_WORK = ("flops", "read_bytes", "write_bytes", "graph_captures", "graph_replays", "graph_misses")  # the last fields of Totals
_NAMES = [f.name for f in fields(Totals) if f.name not in _WORK]
_SUBMITTED, _REFUSED = _NAMES.index("submitted"), _NAMES.index("refused")
_counts: Callable[[Counters], tuple[int, ...]] = attrgetter(*_NAMES[:-1])  # the last one is counted here
_work: Callable[[WorkSums], tuple[float, ...]] = attrgetter(*_WORK)


class Books:
    """Rows of ended requests, sources, totals, the message for the page.

    Attributes:
        sources: who asked for each live request.
        ended: rows of ended and refused requests, newest first.
        preemptions: newest first.
        message: what a person must know now; an old one goes after MESSAGE_STEPS steps.
    """

    def __init__(self, scheduler: Scheduler, text: OutputProcessor, telemetry: Telemetry) -> None:
        self._scheduler = scheduler
        self._text = text
        self._telemetry = telemetry
        self.sources: dict[str, str] = {}
        self.stories = StoryArchive()
        self.ended: deque[RequestView] = deque(maxlen=SHOWN_ENDED)
        self.preemptions: deque[Preemption] = deque(maxlen=SHOWN_PREEMPTIONS)
        self.message = ""
        self.worker_restarts = 0
        self._message_step = 0
        self._refused_early = 0
        self._events: list[RequestEvent] = []
        self._base: tuple[int, ...] = ()  # counts at the last reset
        self._next_id = 1

    def free_id(self) -> str:
        """An id that is not in use: r-000001, r-000002, ..."""
        while True:
            request_id = f"r-{self._next_id:06d}"
            self._next_id += 1
            if not self._scheduler.has_id(request_id):
                return request_id

    @property
    def has_events(self) -> bool:
        """True if events wait to be handed over."""
        return bool(self._events)

    def accepted(self, request: Request, source: str) -> None:
        """The scheduler took a request."""
        self.sources[request.request_id] = source
        self._telemetry.latency.on_arrival(request.request_id, request.arrival_time_s)

    def refused(self, refusal: RequestRefused, row: RequestView, *, before_scheduler: bool) -> None:
        """A request was refused, by the scheduler or before it saw it."""
        self._refused_early += before_scheduler
        message = str(refusal)
        if not before_scheduler:
            self.write(())
        self.ended.appendleft(replace(row, why=message))
        self._events.append(
            RequestEvent(
                refusal.request_id,
                "refused",
                row.arrival_s,
                self._scheduler.step,
                finish_reason=FinishReason.REFUSED,
                message=message,
            )
        )

    def write(self, events: Iterable[RequestEvent]) -> int:
        """Enter the events of a step or a command, with their texts; return how many requests finished."""
        events = list(events)
        ended = self._scheduler.pop_ended()
        if ended or self._text.is_owing:
            self._text.process(events)
        self._events += events
        finished = 0
        for request in ended:
            request_id = request.request_id
            if request.status is RequestStatus.REFUSED:
                self.stories.add(story_of(request))
                continue
            finished += request.status is RequestStatus.FINISHED
            self._telemetry.on_end(request)
            source = self.sources.pop(request_id, "")
            self.ended.appendleft(ended_row(request, hue_of(request_id), source, self._text.tail(request_id)))
            self.stories.add(story_of(request))
            self._text.forget(request_id)
        return finished

    def tail(self, request_id: str) -> str:
        """The last characters of a live request's text."""
        return self._text.tail(request_id)

    def tails_later(self, request_ids: Sequence[str]) -> Callable[[], list[str]]:
        """`tail` of each of many requests as they are now, put together by whoever calls what this returns."""
        return self._text.tails_later(request_ids)

    def hand_over(self) -> list[RequestEvent]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events

    def on_decision(self, output: SchedulerOutput) -> None:
        """Keep the preemptions of a step; an old message goes."""
        self.preemptions.extendleft(output.preemptions)
        if self.message and output.step - self._message_step > MESSAGE_STEPS:
            self.message = ""

    def say(self, message: str) -> None:
        """Put a message on the page."""
        self.message = message
        self._message_step = self._scheduler.step

    def totals(self) -> Totals:
        """Counts since the start or the last reset."""
        counts: Sequence[int] = self._all_counts()
        if self._base:
            counts = [n - b for n, b in zip(counts, self._base, strict=True)]
        return _totals(*counts, *_work(self._telemetry.work))

    def _all_counts(self) -> tuple[int, ...]:
        """The counts of Totals, in its order."""
        counts = [*_counts(self._scheduler.counters), self.worker_restarts]
        for at in (_SUBMITTED, _REFUSED):
            counts[at] += self._refused_early
        return tuple(counts)

    def reset(self) -> None:
        """Start again at zero; events that wait are still handed over. No request may be live."""
        self._base = self._all_counts()
        self._telemetry.clear()
        self.sources.clear()
        self.ended.clear()
        self.preemptions.clear()
        self.stories.clear()
        self.message = ""
