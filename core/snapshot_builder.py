"""One immutable picture of the engine at a step boundary, made only when somebody wants one.

    running rows   fresh in every picture (they change with every step), put together by the first reader
    waiting rows   in a stream of pictures kept while nothing but their age has changed, at most ROW_REUSE_S old
    block map      columns copied from the scheduler, put together by the first reader

Where pictures are taken all the time while the engine runs, the order of the queue and the block map are read again
only every REFRESH_S: they cost as much as everything else together. A picture of an engine at rest is always exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.bookkeeping import Books
from core.config import EngineConfig
from core.executor import ExecutorInfo
from core.outputs import SchedulerOutput
from core.request import Request, RequestStatus
from core.scheduler import Scheduler
from core.slots import by_slots
from core.snapshot import BlockMapView, EngineSnapshot, RequestView
from core.snapshot_rows import RunningRows, hue_of, live_row
from core.telemetry import Telemetry

SHOWN_WAITING = 500
ROW_REUSE_S = 0.5
REFRESH_S = 0.1
MAX_HUES = 20_000

_snapshot = by_slots(EngineSnapshot)


class _KeptRow(NamedTuple):
    """The row of a waiting request, used again while only its age has changed."""

    made_s: float
    request: Request
    row: RequestView

    def still_holds(self, request: Request, why: str, now_s: float) -> bool:
        row = self.row
        return (
            now_s - self.made_s <= ROW_REUSE_S and self.request is request and row.priority == request.priority and row.why == why
        )


def jain_index(service: Sequence[float]) -> float | None:
    """Jain's fairness index (sum x)^2 / (n * sum x^2): 1 for equal shares, 1/n if one has all; None below two tenants."""
    squares = sum(x * x for x in service)
    return sum(service) ** 2 / (len(service) * squares) if len(service) > 1 and squares > 0 else None


class SnapshotBuilder:
    """Builds pictures of one engine; keeps what can be used again for the next one."""

    def __init__(self, scheduler: Scheduler, books: Books, telemetry: Telemetry) -> None:
        self._scheduler = scheduler
        self._books = books
        self._telemetry = telemetry
        self._hues: dict[str, int] = {}
        self._waiting: dict[str, _KeptRow] = {}
        self._revision = 0
        self._refreshed_s = float("-inf")
        self._blocks = BlockMapView(0, 0)
        self._running = RunningRows(self._hue, lambda request_id: books.sources.get(request_id, ""))

    def build(
        self,
        now_s: float,
        wall_s: float | None,
        *,
        state: str,
        config: EngineConfig,
        info: ExecutorInfo,
        last_output: SchedulerOutput | None,
    ) -> EngineSnapshot:
        """The picture at `now_s` on the engine's clock.

        Args:
            wall_s: WallClock time of a stream of pictures; None for a single one, which is exact in everything.
        """
        scheduler, books, telemetry = self._scheduler, self._books, self._telemetry
        self._revision += 1
        pool = scheduler.kv.counts()
        used = scheduler.slots_used()
        live_slots = pool.live * config.cache.block_size
        running = self._running_rows(now_s, last_output)
        lost = scheduler.preempted
        preempted = tuple(self._row(r, now_s, why=scheduler.why_waiting(r.request_id)) for r in lost)
        queued = scheduler.num_waiting + len(lost)
        passed_over = last_output.passed_over if last_output is not None and queued else ()
        tenants = scheduler.tenants()
        stale = self._is_stale(wall_s, state)
        if stale:
            self._blocks = scheduler.block_map_on_demand()
        return _snapshot(
            step=scheduler.step,
            time_s=now_s,
            wall_time_s=now_s if wall_s is None else wall_s,
            state=state,
            config=config,
            info=info,
            message=books.message,
            progress="",
            num_running=len(running),
            num_waiting=scheduler.num_waiting,
            num_preempted=len(preempted),
            running=running,
            waiting=self._waiting_rows(now_s, wall_s is None or state != "running") if stale else self._still_waiting(),
            preempted=preempted,
            ended=tuple(books.ended),
            blocks=self._blocks,
            pool=pool,
            kpis=telemetry.kpis(now_s, idle=not scheduler.requests, fragmentation=1.0 - used / live_slots if live_slots else 0.0),
            totals=books.totals(),
            step_record=telemetry.history.last,
            admitted=last_output.admitted if last_output is not None else (),
            resumed=last_output.resumed if last_output is not None else (),
            passed_over=passed_over,
            preemptions=tuple(books.preemptions),
            tenants=tenants,
            jain_index=jain_index([t.served_tokens / t.weight for t in tenants]),
            ceilings=telemetry.ceilings,
            load_label="",
            recent_requests=telemetry.recent_requests(),
            revision=self._revision,
            tallies=telemetry.tallies(),
        )

    def _is_stale(self, wall_s: float | None, state: str) -> bool:
        """True if the queue and the block map are to be read again."""
        if wall_s is not None and state == "running" and 0 <= wall_s - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = float("-inf") if wall_s is None else wall_s
        return True

    def _still_waiting(self) -> tuple[RequestView, ...]:
        """The rows of the last reading without those whose request has moved on."""
        return tuple([k.row for k in self._waiting.values() if k.request.status is RequestStatus.WAITING])

    def _running_rows(self, now_s: float, output: SchedulerOutput | None) -> Sequence[RequestView]:
        requests = self._scheduler.running
        ids = self._running.ids(requests)
        planned: tuple[Sequence[int], Sequence[bool]]
        if output is not None and output.request_ids == ids:
            planned = output.num_scheduled_tokens, output.is_prefill
        else:
            tokens, prefill = {}, {}
            if output is not None:
                tokens = dict(zip(output.request_ids, output.num_scheduled_tokens, strict=True))
                prefill = dict(zip(output.request_ids, output.is_prefill, strict=True))
            planned = [tokens.get(i, 0) for i in ids], [prefill.get(i, False) for i in ids]
        tables = [t.block_ids if t is not None else () for t in map(self._scheduler.kv.tables.get, ids)]
        preemptions = self._scheduler.counters.preemptions
        return self._running.rows(requests, now_s, planned, tables, self._books.tails_later(ids), preemptions)

    def _waiting_rows(self, now_s: float, exact: bool) -> tuple[RequestView, ...]:
        """Rows in the order of the queue; where exact, none is an older one used again."""
        kept: dict[str, _KeptRow] = {} if exact else self._waiting
        fresh: dict[str, _KeptRow] = {}
        why_waiting = self._scheduler.why_waiting
        rows = []
        for request in self._scheduler.waiting_order(now_s, SHOWN_WAITING):
            if request.status is not RequestStatus.WAITING:
                continue
            request_id = request.request_id
            why = why_waiting(request_id)
            entry = kept.get(request_id)
            if entry is None or not entry.still_holds(request, why, now_s):
                entry = _KeptRow(now_s, request, self._row(request, now_s, why=why))
            fresh[request_id] = entry
            rows.append(entry.row)
        self._waiting = fresh
        return tuple(rows)

    def _hue(self, request_id: str) -> int:
        hue = self._hues.get(request_id)
        if hue is None:
            if len(self._hues) > MAX_HUES:
                self._hues.clear()
            hue = self._hues[request_id] = hue_of(request_id)
        return hue

    def _row(self, request: Request, now_s: float, why: str) -> RequestView:
        """The row of a request that is not running."""
        request_id = request.request_id
        return live_row(request, now_s, self._hue(request_id), self._books.sources.get(request_id, ""), why=why)
