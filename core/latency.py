"""What a request's times mean, and percentiles over the newest of them.

    arrival ---- queue ----> admitted -- prefill --> first token -- gap -- gap ------- gap -- last token, end
    |<------------------- TTFT ------------------->|<-------------- (n - 1) * TPOT ---------->|
    |<---------------------------------- E2E ------------------------------------------------>|

TTFT is the time to the first token that was delivered; a later preemption does not move it. ITL is each gap
between two delivered tokens, so a preemption is one long gap. TPOT = (E2E - TTFT) / (n - 1) over the n tokens
that really came; it has no value for n < 2. E2E and TPOT are those of requests that finished; cancelled ones
count only with the tokens that they got.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from operator import sub

import numpy as np
import numpy.typing as npt

from core.on_demand import PercentilesOnDemand
from core.records import RequestRecord
from core.request import FinishReason, Request
from core.snapshot import Percentiles
from core.tally import SECONDS, GrowingTally

NEWEST_REQUESTS = 1024
NEWEST_GAPS = 4096
MOST_RUNS = 64


def tpot_s(e2e_s: float, ttft_s: float | None, output_tokens: int) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for fewer than two tokens."""
    if ttft_s is None or output_tokens < 2:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1)


def gaps_s(token_times_s: Sequence[float]) -> tuple[float, ...]:
    """Time between each output token and the one before."""
    return tuple(map(sub, token_times_s[1:], token_times_s[:-1]))


def slo_met(request: Request, ttft_s: float | None, max_itl_s: float | None) -> bool | None:
    """True if a finished request met every target that it had: TTFT, and each single gap for ITL.

    None without a target, or if its owner cancelled it; a missed deadline misses the SLO.
    """
    slo = request.slo
    if (slo.ttft_s is None and slo.itl_s is None) or request.finish_reason in (FinishReason.CANCELLED, FinishReason.REFUSED):
        return None
    if request.finish_reason is FinishReason.DEADLINE:
        return False
    in_time = slo.ttft_s is None or (ttft_s is not None and ttft_s <= slo.ttft_s)
    steady = slo.itl_s is None or max_itl_s is None or max_itl_s <= slo.itl_s
    return in_time and steady


def request_record(request: Request, shared: dict[float, float] | None = None) -> RequestRecord:
    """The record of an ended request.

    Args:
        shared: gaps of other requests, and then of this one: requests of one batch have equal gaps, kept as one object.

    Raises:
        ValueError: if it has not ended.
    """
    if request.finished_time_s is None:
        raise ValueError(f"request {request.request_id} is {request.status}; only an ended one has a record")
    arrival = request.arrival_time_s
    e2e = request.finished_time_s - arrival
    first = request.first_token_time_s
    ttft = None if first is None else first - arrival
    gaps = gaps_s(request.token_times_s)
    if shared is not None:
        gaps = tuple(map(shared.setdefault, gaps, gaps))
    longest = max(gaps, default=None)
    return RequestRecord(
        request_id=request.request_id,
        tenant=request.tenant,
        priority=request.priority,
        arrival_s=arrival,
        finished_s=request.finished_time_s,
        finish_reason=str(request.finish_reason or ""),
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        queue_s=None if request.admitted_time_s is None else request.admitted_time_s - arrival,
        ttft_s=ttft,
        tpot_s=tpot_s(e2e, ttft, request.num_output_tokens),
        e2e_s=e2e,
        max_itl_s=longest,
        preempted_s=math.fsum(end - start for start, end in request.preempted_spans_s),
        slo_ttft_s=request.slo.ttft_s,
        slo_itl_s=request.slo.itl_s,
        slo_met=slo_met(request, ttft, longest),
        itl_s=gaps,
    )


def percentiles(values: npt.NDArray[np.float64]) -> Percentiles:
    """p50, p95, p99 with linear interpolation between the closest ranks (numpy's default)."""
    count = len(values)
    if not count:
        return Percentiles()
    places = [(count - 1) * share for share in (0.50, 0.95, 0.99)]
    ranks = sorted({k for place in places for k in (math.floor(place), math.ceil(place))})
    parted = np.partition(values, ranks)
    found = []
    for place in places:
        low, high = parted[math.floor(place)], parted[math.ceil(place)]
        found.append(float(low + (high - low) * (place - math.floor(place))))
    return Percentiles(count, *found)


def _percentiles(values: npt.NDArray[np.float64], runs: tuple[tuple[float, int], ...], size: int) -> Percentiles:
    """Those of `values`, oldest first, and the runs (value, times) that came after them; the newest `size` count."""
    if runs:
        later = np.repeat([value for value, _ in runs], [times for _, times in runs])
        values = np.concatenate((values, later))[-size:]
    return percentiles(values)


class Newest:
    """The newest `size` values, and their percentiles (computed again only after a change).

    A value that comes many times at once is kept as a run (value, times) until there are MOST_RUNS of them: a step then
    touches one pair, and a picture copies the values only after they have changed.
    """

    __slots__ = ("_at", "_cached", "_copy", "_count", "_runs", "_values")

    def __init__(self, size: int) -> None:
        self._values = np.zeros(size)
        self._count = 0
        self._at = 0
        self._runs: list[tuple[float, int]] = []
        self._copy: npt.NDArray[np.float64] | None = None  # of the values without the runs, oldest first
        self._cached: Percentiles | None = Percentiles()

    def __len__(self) -> int:
        return min(self._count + sum([times for _, times in self._runs]), len(self._values))

    def extend(self, values: Iterable[float]) -> None:
        """Take values in; the oldest leave."""
        self.extend_array(np.fromiter(values, float))

    def extend_array(self, new: npt.NDArray[np.float64]) -> None:
        """As `extend`."""
        self._settle()
        self._take(new)

    def _take(self, new: npt.NDArray[np.float64]) -> None:
        size = len(self._values)
        new = new[-size:]
        if not len(new):
            return
        head = min(size - self._at, len(new))
        self._values[self._at : self._at + head] = new[:head]
        self._values[: len(new) - head] = new[head:]
        self._at = (self._at + len(new)) % size
        self._count = min(self._count + len(new), size)
        self._cached = self._copy = None

    def add(self, value: float, times: int) -> None:
        """Take the same value in `times` times."""
        if times < 1:
            return
        self._runs.append((value, times))
        self._cached = None
        if len(self._runs) >= MOST_RUNS:
            self._settle()

    def _settle(self) -> None:
        """Put the runs among the values."""
        if self._runs:
            runs, self._runs = self._runs, []
            self._take(np.repeat([value for value, _ in runs], [times for _, times in runs]))

    def percentiles(self) -> Percentiles:
        """Percentiles of the values held, computed when somebody reads one."""
        if self._cached is None:
            if self._copy is None:
                at = self._at if self._count == len(self._values) else 0
                self._copy = np.concatenate((self._values[at : self._count], self._values[:at]))
            self._cached = PercentilesOnDemand(len(self), partial(_percentiles, self._copy, tuple(self._runs), len(self._values)))
        return self._cached


class LatencyTracker:
    """Latencies as they happen: TTFT and ITL at each token, TPOT and E2E at the end of a request."""

    def __init__(self) -> None:
        self.ttft = Newest(NEWEST_REQUESTS)
        self.itl = Newest(NEWEST_GAPS)
        self.tpot = Newest(NEWEST_REQUESTS)
        self.e2e = Newest(NEWEST_REQUESTS)
        self.all_ttft = GrowingTally(SECONDS)
        self.all_itl = GrowingTally(SECONDS)
        self._arrival_s: dict[str, float] = {}  # until the first token
        self._last_token_s: dict[str, float] = {}
        self._group: tuple[str, ...] = ()  # whose latest token came at _group_s, whatever _last_token_s says
        self._group_s = 0.0

    def on_arrival(self, request_id: str, arrival_s: float) -> None:
        """A request was accepted."""
        self._arrival_s[request_id] = arrival_s

    def on_step_tokens(self, request_ids: tuple[str, ...], time_s: float) -> None:
        """Take one token of each request, all delivered at once; as `on_tokens`, but the same batch again costs no look-up."""
        if request_ids and request_ids == self._group:
            self.itl.add(time_s - self._group_s, len(request_ids))
            self.all_itl.add(time_s - self._group_s, len(request_ids))
        else:
            self.on_tokens([(request_id, time_s) for request_id in request_ids])
            self._group = request_ids
        self._group_s = time_s

    def on_tokens(self, tokens: Iterable[tuple[str, float]]) -> None:
        """Take delivered tokens: (request id, time)."""
        self._dissolve()
        last = self._last_token_s
        gaps: list[float] = []
        firsts: list[float] = []
        for request_id, time_s in tokens:
            before = last.get(request_id)
            if before is not None:
                gaps.append(time_s - before)
            elif request_id in self._arrival_s:
                firsts.append(time_s - self._arrival_s.pop(request_id))
            last[request_id] = time_s
        if gaps:
            self.itl.extend(gaps)
            self.all_itl.extend(gaps)
        if firsts:
            self.ttft.extend(firsts)
            self.all_ttft.extend(firsts)

    def on_end(self, record: RequestRecord) -> None:
        """Take an ended request."""
        self._dissolve()
        self._last_token_s.pop(record.request_id, None)
        self._arrival_s.pop(record.request_id, None)
        if record.finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.REFUSED):
            return
        self.e2e.extend((record.e2e_s,))
        if record.tpot_s is not None:
            self.tpot.extend((record.tpot_s,))

    def _dissolve(self) -> None:
        """Write down when each request of the group had its latest token."""
        self._last_token_s.update(dict.fromkeys(self._group, self._group_s))
        self._group = ()
