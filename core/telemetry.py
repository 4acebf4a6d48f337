"""What the engine remembers of its steps and requests, in bounded memory, and the figures made of it.

    step    -> StepHistory (newest whole, older thinned)  and  RateWindow (sums over the last window_s seconds)
    tokens  -> TTFT, ITL as they are delivered            end -> RequestRecord, TPOT, E2E, goodput

Rates are sums over the window divided by its length. They are what happens now: with nothing to do they are 0.
Percentiles are over the newest 1,024 requests and 4,096 gaps, and stay when the engine is idle.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from core.ceilings import CeilingWatch, device_s
from core.latency import LatencyTracker, request_record
from core.records import RequestRecord, StepRecord
from core.request import FinishReason, Request
from core.slots import by_slots
from core.snapshot import Kpis, RooflineCeilings
from core.step_history import StepHistory
from core.tally import TOKENS, GrowingTally, Tallies
from core.utilisation import mbu, mfu

WINDOW_S = 10.0
MAX_WINDOW_STEPS = 4096
RECENT_REQUESTS = 200
KEPT_REQUESTS = 2048
KEPT_GAPS = 200_000
_SHARED_GAPS = 2048


@dataclass(slots=True)
class WindowSums:
    """Sums over the steps of the window; the counts of requests are of those that ended in it.

    `judged_*` and the useful work are of the steps below the ceilings: what MFU and MBU are made of.
    """

    steps: int = 0
    busy_s: float = 0.0
    host_s: float = 0.0
    output_tokens: int = 0
    total_tokens: int = 0
    rows: int = 0
    useful_flops: float = 0.0
    useful_bytes: float = 0.0
    waited_steps: int = 0
    full_steps: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    judged_steps: int = 0
    judged_s: float = 0.0


_Entry = tuple[float, float, int, int, int, float, float, int, int, int, int, float, int, float]


class RateWindow:
    """Sums over the steps that ended in the last `window_s` seconds, at most MAX_WINDOW_STEPS of them.

    Sums are kept by adding and taking away; they start from zero again whenever the window is empty.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._entries: deque[_Entry] = deque()
        self._ends_s: deque[tuple[float, bool | None]] = deque()
        self._with_slo = self._met = 0  # of _ends_s
        self._is_full = False  # steps have left because of their age
        self.sums = WindowSums()

    def add(self, record: StepRecord, queried_tokens: int, *, is_judged: bool = True) -> None:
        """Take a step in; without `is_judged` it says nothing about MFU and MBU."""
        waited = int(record.num_waiting + record.num_preempted > 0)
        entry: _Entry = (
            record.start_s + record.duration_s,
            record.duration_s,
            record.output_tokens,
            record.prefill_tokens + record.decode_tokens,
            record.prefill_requests + record.decode_requests,
            record.useful_flops if is_judged else 0.0,
            record.useful_bytes if is_judged else 0.0,
            waited,
            int(waited and record.full_batch),
            record.cached_tokens,
            queried_tokens,
            record.host_s,
            int(is_judged),
            max(record.duration_s, device_s(record)) if is_judged else 0.0,
        )
        self._entries.append(entry)
        self._count(entry, 1)
        while len(self._entries) > MAX_WINDOW_STEPS:
            self._count(self._entries.popleft(), -1)
            self._is_full = False

    def _count(self, entry: _Entry, sign: int) -> None:
        s = self.sums
        s.steps += sign
        s.busy_s += sign * entry[1]
        s.output_tokens += sign * entry[2]
        s.total_tokens += sign * entry[3]
        s.rows += sign * entry[4]
        s.useful_flops += sign * entry[5]
        s.useful_bytes += sign * entry[6]
        s.waited_steps += sign * entry[7]
        s.full_steps += sign * entry[8]
        s.cached_tokens += sign * entry[9]
        s.queried_tokens += sign * entry[10]
        s.host_s += sign * entry[11]
        s.judged_steps += sign * entry[12]
        s.judged_s += sign * entry[13]

    def end(self, time_s: float, met: bool | None) -> None:
        """Take note of a finished request and of whether it met its SLO."""
        self._ends_s.append((time_s, met))
        self._with_slo += met is not None
        self._met += met is True
        while len(self._ends_s) > MAX_WINDOW_STEPS:
            self._drop_end()

    def _drop_end(self) -> None:
        _, met = self._ends_s.popleft()
        self._with_slo -= met is not None
        self._met -= met is True

    def move_to(self, now_s: float) -> float:
        """Drop what is older than the window; return the seconds that the sums are over.

        That is the window's length, or the time since the first step after a rest, with the whole of a step that
        lies across the edge.
        """
        oldest_s = now_s - self.window_s
        entries = self._entries
        while entries and entries[0][0] <= oldest_s:
            self._count(entries.popleft(), -1)
            self._is_full = True
        while self._ends_s and self._ends_s[0][0] <= oldest_s:
            self._drop_end()
        if not entries:
            self.sums = WindowSums()
            self._is_full = False
            return 0.0
        since_first_s = now_s - (entries[0][0] - entries[0][1])
        return max(self.window_s, since_first_s) if self._is_full else since_first_s

    def ends(self) -> tuple[int, int, int]:
        """(finished, with an SLO, that met it) in the window."""
        return len(self._ends_s), self._with_slo, self._met

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._ends_s.clear()
        self._with_slo = self._met = 0
        self._is_full = False
        self.sums = WindowSums()


@dataclass(slots=True)
class WorkSums:
    """FLOPs, bytes and graph launches of all steps since the start or the last reset."""

    flops: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    graph_captures: int = 0
    graph_replays: int = 0
    graph_misses: int = 0

    def add(self, record: StepRecord) -> None:
        """Take a step in."""
        self.flops += record.flops
        self.read_bytes += record.weight_bytes + record.kv_read_bytes
        self.write_bytes += record.kv_write_bytes
        if record.graph.startswith("graph hit"):
            self.graph_replays += 1
        elif record.graph.startswith("graph miss"):
            self.graph_misses += 1
            self.graph_captures += record.graph != "graph miss"


class Telemetry:
    """History, windows and latencies of one engine.

    Args:
        history_steps: most step records kept.
        window_s: length of the rate window on the engine's clock.
    """

    def __init__(self, history_steps: int = 20_000, window_s: float = WINDOW_S) -> None:
        self.history = StepHistory(history_steps)
        self.window = RateWindow(window_s)
        self.latency = LatencyTracker()
        self.watch = CeilingWatch()
        self.work = WorkSums()
        self.step_tokens = GrowingTally(TOKENS)
        self._requests: deque[RequestRecord] = deque()
        self._kept_gaps = 0
        self._shared_gaps: dict[float, float] = {}
        self._recent: tuple[RequestRecord, ...] | None = ()

    @property
    def ceilings(self) -> RooflineCeilings | None:
        """The best that was measured, by a probe or by steps; None before the first probe."""
        return self.watch.ceilings

    @ceilings.setter
    def ceilings(self, value: RooflineCeilings | None) -> None:
        self.watch.ceilings = value

    def on_step(self, record: StepRecord, queried_tokens: int) -> None:
        """Take a finished step."""
        self.history.append(record)
        self.work.add(record)
        self.step_tokens.extend((record.prefill_tokens + record.decode_tokens,))
        self.window.add(record, queried_tokens, is_judged=self.watch.on_step(record))
        self.window.move_to(record.start_s + record.duration_s)

    def on_end(self, request: Request) -> RequestRecord:
        """Take an ended request; returns its record."""
        if len(self._shared_gaps) > _SHARED_GAPS:
            self._shared_gaps.clear()
        record = request_record(request, self._shared_gaps)
        self.latency.on_end(record)
        if request.finish_reason not in (FinishReason.CANCELLED, FinishReason.REFUSED):
            self.window.end(record.finished_s, record.slo_met)
        self._requests.append(record)
        self._kept_gaps += len(record.itl_s)
        while len(self._requests) > KEPT_REQUESTS or self._kept_gaps > KEPT_GAPS:
            self._kept_gaps -= len(self._requests.popleft().itl_s)
        self._recent = None
        return record

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """Ended requests, newest first, at most KEPT_REQUESTS with KEPT_GAPS token gaps in all."""
        return tuple(reversed(self._requests))

    def recent_requests(self) -> tuple[RequestRecord, ...]:
        """Ended requests, newest first, at most RECENT_REQUESTS."""
        if self._recent is None:
            self._recent = tuple(islice(reversed(self._requests), RECENT_REQUESTS))
        return self._recent

    def clear(self) -> None:
        """Forget steps, requests and latencies; the ceilings stay."""
        self.history.clear()
        self.watch.forget_doubts()
        self.work = WorkSums()
        self.step_tokens = GrowingTally(TOKENS)
        self.window.clear()
        self.latency = LatencyTracker()
        self._requests.clear()
        self._kept_gaps = 0
        self._recent = ()

    def tallies(self) -> Tallies:
        """The histograms since the start or the last reset."""
        return Tallies(self.latency.all_ttft.now(), self.latency.all_itl.now(), self.step_tokens.now())

    def kpis(self, now_s: float, *, idle: bool, fragmentation: float) -> Kpis:
        """The tiles' numbers at `now_s`; `idle` (nothing to do) makes every rate 0."""
        span_s = self.window.move_to(now_s)
        s = self.window.sums
        finished, with_slo, met = self.window.ends()
        latency = self.latency
        active = not idle and span_s > 0
        rate = 1.0 / span_s if active else 0.0
        share_flops, (share_bytes, ceiling) = None, (None, "")
        if self.ceilings is not None:
            share_flops = mfu(s.useful_flops, s.judged_s, self.ceilings) if active else 0.0
            share_bytes, ceiling = mbu(s.useful_bytes, s.judged_s, s.judged_steps, self.ceilings) if active else (0.0, "")
        return _kpis(
            window_s=self.window.window_s,
            output_tokens_per_s=s.output_tokens * rate,
            total_tokens_per_s=s.total_tokens * rate,
            requests_per_s=finished * rate,
            goodput_per_s=met * rate if with_slo else None,
            ttft=latency.ttft.percentiles(),
            itl=latency.itl.percentiles(),
            tpot=latency.tpot.percentiles(),
            e2e=latency.e2e.percentiles(),
            full_batch_share=s.full_steps / s.waited_steps if s.waited_steps else None,
            mean_batch=s.rows / s.steps if active and s.steps else 0.0,
            mfu=share_flops,
            mbu=share_bytes,
            host_share=min(s.host_s / s.busy_s, 1.0) if active and s.busy_s > 0 else 0.0,
            host_us=max(s.host_s, 0.0) / s.steps * 1e6 if active and s.steps else 0.0,
            prefix_hit_rate=s.cached_tokens / s.queried_tokens if s.queried_tokens else None,
            fragmentation=fragmentation,
            mbu_ceiling=ceiling,
        )


_kpis = by_slots(Kpis)
