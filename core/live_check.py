"""The live engine held against its own prediction: what it did lately under one setting, simulated and compared.

unchanged since   settings, load, speed and kernels as they are now
window            since then, and since the oldest end that is remembered: [start, now]
open loop         the same requests at the same times, priced at the pace of the window
closed loop       the same users, run warm first; their steps and ended requests of as long a window
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.control import AuditEntry
from core.cost_model import CostModel
from core.errors import ConfigError
from core.latency import tpot_s
from core.load_spec import LoadSpec
from core.pace import paced
from core.prediction import Pair, live_arrivals
from core.records import RequestRecord, StepRecord
from core.run_summary import summarise
from core.sim_result import SimulationResult
from core.snapshot import EngineSnapshot, RequestView
from core.step_residuals import LEAST_STEPS, Observation, like_steps_differ, observe, residuals, run_factor
from core.step_timer import CalibratedTimer, StepCoefficients
from core.telemetry import RECENT_REQUESTS
from core.whatif import WhatIf
from core.whatif_base import ended_well, observed_load

LEAST_CHECKED = 20
"""Medians of fewer requests say more about chance than about the prediction."""
STALL = 5.0
CHANGES = ("configure", "model", "reset", "speed", "step")
"""Commands after which the engine's figures are those of another engine."""


def unchanged_since(latest: EngineSnapshot, pictures: Sequence[EngineSnapshot], audit: Sequence[AuditEntry]) -> float:
    """Engine time from which settings, load, speed limit and kernels are those of the latest picture; 0 is the beginning.

    Args:
        pictures: earlier ones, oldest first; they tell the engine's time of a wall time, since nothing ages in a pause.
    """
    known = [*(p for p in pictures if p.wall_time_s <= latest.wall_time_s), latest]
    found = 0.0
    made = [e.time_s for e in audit if e.outcome == "accepted" and e.command in CHANGES]
    if made:
        after = [p.time_s for p in known if p.wall_time_s >= max(made)]
        found = after[0] if len(after) > 1 else max(latest.time_s - (latest.wall_time_s - max(made)), 0.0)
    return max(found, kernels_since(latest, pictures))


def kernels_since(latest: EngineSnapshot, pictures: Sequence[EngineSnapshot]) -> float:
    """Engine time from which the present kernels have computed, to a picture; 0 if there were no others."""
    kernels = latest.info.kernels if latest.info else ""
    known = [*pictures, latest]
    others = [at for at, p in enumerate(known[:-1]) if p.info is not None and p.info.kernels != kernels]
    return known[others[-1] + 1].time_s if others else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """What the live engine did lately, ready to be simulated and compared.

    Attributes:
        ended: requests that arrived and ended in the window, in order of arrival; `live`: those under way.
        loop_ended: all that ended in the window, also those that came before it: what a warm closed loop is held against.
        start_s, end_s: the window, engine time.
        was_running: the engine had requests when it began.
    """

    ended: tuple[RequestRecord, ...]
    loop_ended: tuple[RequestRecord, ...]
    live: tuple[RequestView, ...]
    records: tuple[StepRecord, ...]
    start_s: float
    end_s: float
    load: LoadSpec | None = None
    was_running: bool = False

    @property
    def span_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def is_closed(self) -> bool:
        """True where the load is a closed loop, which is simulated as one."""
        return self.load is not None and self.load.is_closed

    @property
    def compared(self) -> tuple[RequestRecord, ...]:
        """The requests whose latencies are compared."""
        return self.loop_ended if self.is_closed else self.ended

    @property
    def warm_up_s(self) -> float:
        """How long a closed loop runs before it is compared, if the engine had been running when the window began."""
        longest_s = max((r.e2e_s or 0.0 for r in self.loop_ended), default=0.0)
        return min(longest_s, self.span_s) if self.is_closed and self.was_running else 0.0

    def what(self, base: WhatIf) -> WhatIf:
        """The base with what is comparable with these requests, at the pace of the window.

        A closed loop is simulated as one, with the lengths that were seen: its users send when they have their answers, so the
        times at which they sent here say nothing about another pace. Everything else is the same requests at the same times.
        """
        base = self._paced(base)
        if self.load is None or not self.load.is_closed:
            under_way = [_as_record(view) for view in self.live]
            arrivals = live_arrivals([*self.ended, *under_way], base.model.vocab_size)
            return replace(base, arrivals=arrivals, load=None, trace=None)
        ample = 8 * (len(self.loop_ended) + len(self.live))  # more than fits: the loop must not run dry before it ends
        load = observed_load(self.load, self.loop_ended, ample)
        if not self.was_running:
            load = replace(load, ramp_s=self.load.ramp_s)
        return replace(base, load=load, arrivals=(), trace=None)

    def pace(self, base: WhatIf) -> float:
        """Seconds of the window's steps / seconds that the law has for them; 1 for too few steps, or without a law."""
        law = base.coefficients
        if law is None:
            return 1.0
        cost = base.setup().cost
        return self._pace(law, cost)

    def held_s(self, base: WhatIf) -> float:
        """Seconds that steps took beyond `STALL` times their price: the machine was held, which no pace explains."""
        what = self._paced(base)
        if what.coefficients is None:
            return 0.0
        cost = base.setup().cost
        rows = residuals(self.observations(cost), CalibratedTimer(cost, what.coefficients.of_one_step()))
        return sum(r.measured_s - r.predicted_s for r in rows if r.measured_s > STALL * r.predicted_s)

    def _paced(self, base: WhatIf) -> WhatIf:
        law = base.coefficients
        if law is None:
            return base
        cost = base.setup().cost
        law = paced(law, self.observations(cost), cost)
        return replace(base, coefficients=replace(law, run_factor=1.0, pace=self._pace(law, cost)))

    def _pace(self, law: StepCoefficients, cost: CostModel) -> float:
        rows = residuals(self.observations(cost), CalibratedTimer(cost, replace(law.of_one_step(), pace=1.0)))
        return run_factor(rows) if len(rows) >= LEAST_STEPS else law.factor

    def observations(self, cost: CostModel) -> list[Observation]:
        """The window's steps as sums and seconds."""
        return [o for r in self.records if r.kind == "measured" and (o := observe(r, cost)) is not None]

    def like_steps_differ(self, cost: CostModel) -> float | None:
        """How far neighbouring steps of the same make-up are apart: what no prediction can know; None for too few."""
        return like_steps_differ(self.observations(cost))


def live_run(
    snapshot: EngineSnapshot, records: Sequence[StepRecord], since_s: float = 0.0, load: LoadSpec | None = None
) -> LiveRun:
    """The latest requests of the live engine that ran under its present settings.

    Args:
        since_s: engine time of the latest change, see `unchanged_since`.
        load: the running load.

    Raises:
        ConfigError: if too few requests have ended since.
    """
    config = snapshot.config.scheduler
    knobs = (config.max_num_seqs, config.max_num_batched_tokens)
    other = [r.start_s + r.duration_s for r in records if (r.max_num_seqs, r.budget_tokens) != knobs]
    since_s = max([since_s, *other[-1:]])
    recent = snapshot.recent_requests
    # Only so many ended requests are remembered; of those that came before the oldest of these ends some are forgotten.
    start_s = max(since_s, min(r.finished_s for r in recent) if len(recent) >= RECENT_REQUESTS else 0.0)
    ended = ended_well(recent, start_s)
    if len(ended) < LEAST_CHECKED:
        raise ConfigError(f"{len(ended)} requests have come and ended under the present settings; {LEAST_CHECKED} are needed")
    if start_s == since_s:
        start_s = max(start_s, ended[0].arrival_s)
    loop_ended = [r for r in ended_well(recent, since_s) if r.finished_s >= start_s]
    live = [v for v in (*snapshot.running, *snapshot.waiting, *snapshot.preempted) if v.arrival_s >= start_s]
    inside = tuple(r for r in records if r.start_s >= start_s)
    before = [r for r in records if r.start_s < start_s]
    was_running = before[-1].num_running > before[-1].finished if before else bool(records and records[0].step > 1)
    return LiveRun(tuple(ended), tuple(loop_ended), tuple(live), inside, start_s, snapshot.time_s, load, was_running)


def compare_live(run: LiveRun, result: SimulationResult) -> tuple[Pair, ...]:
    """Predicted beside measured, figure by figure; throughput counts the tokens of the same requests on both sides."""
    measured = summarise(run.records, run.compared)
    if run.is_closed:
        tokens = sum(r.output_tokens for r in run.records)
    else:
        tokens = sum(r.output_tokens for r in run.ended) + sum(v.output_tokens for v in run.live)
    rate = tokens / run.span_s if run.span_s > 0 else None
    pairs = [Pair("output_tokens_per_s", "tokens/s", result.output_tokens_per_s, rate)]
    latencies = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "tpot_p50", "e2e_p50", "e2e_p99")
    pairs += [Pair(name, "s", result.figure(name), measured.value(f"{name}_s")) for name in latencies]
    pairs.append(Pair("mean_step_s", "s", result.mean_step_s, measured.mean_step_s))
    pairs.append(Pair("mean_batch", "requests", result.mean_batch, measured.mean_batch))
    return tuple(pairs)


def _as_record(view: RequestView) -> RequestRecord:
    """A request under way as if it ran to its limit; its end lies behind the horizon of the comparison."""
    return RequestRecord(
        request_id=view.request_id,
        tenant=view.tenant,
        priority=view.priority,
        arrival_s=view.arrival_s,
        finished_s=view.arrival_s + view.age_s,
        finish_reason="length",
        prompt_tokens=view.prompt_tokens,
        output_tokens=max(view.max_tokens, 1),
        cached_tokens=view.cached_tokens,
        num_preemptions=view.num_preemptions,
        queue_s=None,
        ttft_s=None,
        tpot_s=tpot_s(view.age_s, None, view.output_tokens),
        e2e_s=view.age_s,
        max_itl_s=None,
        preempted_s=0.0,
    )
