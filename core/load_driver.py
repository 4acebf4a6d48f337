"""A load on the live engine: arrivals become submissions at step boundaries, answers become the next questions.

    open loop     every arrival whose time has come; its arrival time is when it was due, not when a step ended,
                  so a slow engine cannot hide the wait that it causes
    closed loop   a user's next request is due a think time after the last answer ended

Runs in the engine's thread and on the engine's clock, whichever clock that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from core.errors import RequestRefused
from core.outputs import RequestEvent
from core.prompts import PromptSource
from core.workload import Arrival, LoadGenerator, LoadSpec

MAX_SUBMISSIONS_A_STEP = 256
REFUSED_PAUSE_S = 1.0
"""A closed-loop user whose request was refused asks again after this long, s; at once would be a busy loop."""

_ENDS = frozenset(("finished", "cancelled", "refused"))


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """What became of the load's requests so far; offered = accepted + refused."""

    offered: int = 0
    accepted: int = 0
    refused: int = 0
    ended: int = 0
    last_refusal: str = ""

    @property
    def in_flight(self) -> int:
        return self.accepted - self.ended


class LoadDriver:
    """Feeds one load at a time.

    Args:
        submit: gives an arrival to the engine and returns the request's id; may raise RequestRefused.
        prompts: makes the prompt source of a spec (called once for each load).
    """

    def __init__(self, submit: Callable[[Arrival], str], prompts: Callable[[LoadSpec], PromptSource]) -> None:
        self._submit = submit
        self._prompts = prompts
        self._generator: LoadGenerator | None = None
        self._users: dict[str, int] = {}  # requests in flight and who waits for them
        self._counts = LoadCounts()

    @property
    def spec(self) -> LoadSpec | None:
        """The running load, None if there is none."""
        return self._generator.spec if self._generator is not None else None

    @property
    def counts(self) -> LoadCounts:
        """Counts since the load began."""
        return self._counts

    @property
    def label(self) -> str:
        """One line for the page; empty without a load."""
        if self._generator is None:
            return ""
        return self._generator.spec.label + (" (all sent)" if self._generator.is_exhausted else "")

    @property
    def next_due_s(self) -> float | None:
        """When `feed` will have something to do if no answer ends before; None if nothing is scheduled."""
        return self._generator.next_time_s if self._generator is not None else None

    def start(self, spec: LoadSpec, now_s: float) -> None:
        """Begin a load at `now_s`; requests of an earlier load run on and are no longer counted."""
        self._generator = LoadGenerator(spec, self._prompts(spec), start_s=now_s)
        self._users = {}
        self._counts = LoadCounts()

    def stop(self) -> None:
        """Send nothing more; what was sent runs on."""
        self._generator = None

    def feed(self, now_s: float) -> int:
        """Submit what is due, at most MAX_SUBMISSIONS_A_STEP; returns how many were offered."""
        if self._generator is None:
            return 0
        due = self._generator.due(now_s, MAX_SUBMISSIONS_A_STEP)
        for arrival in due:
            self._offer(arrival, now_s)
        return len(due)

    def _offer(self, arrival: Arrival, now_s: float) -> None:
        counts = self._counts
        try:
            request_id = self._submit(arrival)
        except RequestRefused as refusal:
            self._counts = replace(counts, offered=counts.offered + 1, refused=counts.refused + 1, last_refusal=str(refusal))
            if self._generator is not None:
                self._generator.on_end(arrival.user, now_s + REFUSED_PAUSE_S)
            return
        self._counts = replace(counts, offered=counts.offered + 1, accepted=counts.accepted + 1)
        self._users[request_id] = arrival.user

    def on_events(self, events: Iterable[RequestEvent]) -> None:
        """Take note of ended requests."""
        for event in events:
            if event.kind in _ENDS:
                self.on_end(event.request_id, event.time_s)

    def on_end(self, request_id: str, now_s: float) -> None:
        """One request ended; ids of other origin are ignored."""
        user = self._users.pop(request_id, None)
        if user is None:
            return
        self._counts = replace(self._counts, ended=self._counts.ended + 1)
        if self._generator is not None:
            self._generator.on_end(user, now_s)
