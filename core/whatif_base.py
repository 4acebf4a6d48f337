"""The live engine as the base of a what-if: the law of its own steps, its load as it was observed, and its error.

records ----- calibrate -----> law      config, pool, law -> WhatIf "as it is now"
ended requests -> lengths and prefixes as they really were -> the load again
ended and live requests -> the same arrivals simulated up to now -> predicted beside measured
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from core.calibration import Calibration, calibrate, measured_device
from core.config import EngineConfig
from core.cost_model import CostModel
from core.devices import DeviceSpec
from core.errors import ConfigError
from core.executor import ExecutorInfo
from core.latency import tpot_s
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.prediction import Pair, live_arrivals, this_machine
from core.records import RequestRecord, StepRecord
from core.roofline import IDEAL
from core.run_summary import summarise
from core.sim_result import SimulationResult
from core.snapshot import EngineSnapshot, RequestView
from core.whatif import WhatIf

LEAST_OBSERVED = 16
"""Fewer ended requests than this say too little about lengths; the load's own distributions stand then."""

LEAST_CHECKED = 8
_LAW_STEPS = 4000


@dataclass(frozen=True, slots=True, eq=False)
class LiveBase:
    """The live engine as a what-if without a load.

    Attributes:
        calibration: the law of its steps; None while too few steps were measured (the measured ceilings price steps then).
        basis: what prices a step, in words.
        host_s: median time of a step outside the forward pass; what any faster device would still wait for.
    """

    whatif: WhatIf
    device: DeviceSpec
    calibration: Calibration | None
    basis: str
    steps: int
    host_s: float = 0.0


def live_cost(info: ExecutorInfo) -> CostModel:
    """The cost model of what runs, from the bytes of its real tensors."""
    return CostModel.of(
        info.spec,
        weight_dtype=info.dtype,
        kv_dtype=info.dtype,
        head_dtype=info.dtype,
        weight_bytes_read=float(info.weight_bytes_read),
        kv_bytes_per_token=float(info.kv_bytes_per_token),
    )


def live_base(snapshot: EngineSnapshot, records: Sequence[StepRecord], memory_bytes: float) -> LiveBase:
    """The engine as it is now.

    Args:
        records: its measured steps, oldest first.
        memory_bytes: memory of the machine.

    Raises:
        ConfigError: while there is no model yet, or neither steps nor ceilings to price a step by.
    """
    info = snapshot.info
    if info is None:
        raise ConfigError("the model is still loading; a prediction needs its geometry")
    ceilings = snapshot.ceilings
    recent = records[-_LAW_STEPS:]
    start = (
        measured_device(ceilings, memory_bytes)
        if ceilings is not None
        else DeviceSpec("this machine", 100e9, 15e9, memory_bytes, source="start of the fit; the measured steps decide")
    )
    device = replace(start, name="this machine")
    host_s = median([r.host_s for r in recent if r.flops] or [0.0])
    try:
        law = calibrate(recent, live_cost(info), device)
    except ConfigError:
        if ceilings is None:
            raise
        what = _by_ceilings(snapshot.config, info, device)
        return LiveBase(what, device, None, "measured ceilings, no law yet", len(recent), host_s)
    what = this_machine(snapshot.config, info, device, law.coefficients)
    return LiveBase(what, device, law, law.source, len(recent), host_s)


def _by_ceilings(config: EngineConfig, info: ExecutorInfo, device: DeviceSpec) -> WhatIf:
    limit = info.spec.max_model_len
    return WhatIf(
        model=info.spec,
        device=device,
        scheduler=config.scheduler,
        efficiency=IDEAL,
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        num_swap_blocks=config.cache.num_swap_blocks,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        eviction_policy=config.cache.eviction_policy,
        weight_dtype=info.dtype,
        kv_dtype=info.dtype,
        head_dtype=info.dtype,
        max_model_len=min(config.max_model_len or limit, limit),
        label=f"{info.model_label} on this machine",
    )


# -- the load, as it was observed ----------------------------------------------------------------------------


def ended_well(requests: Sequence[RequestRecord], since_s: float = 0.0) -> list[RequestRecord]:
    """Requests that finished with at least one token and arrived at `since_s` or later, in order of arrival."""
    done = [r for r in requests if r.output_tokens and r.finish_reason in ("stop", "length", "capacity")]
    return sorted((r for r in done if r.arrival_s >= since_s), key=lambda r: r.arrival_s)


def observed_load(load: LoadSpec, requests: Sequence[RequestRecord], num_requests: int) -> LoadSpec:
    """A finite copy of the live load with the lengths and the shared prefixes that its requests really had.

    An output that ended with the model's end token is shorter than what was asked for, and a chat template adds to a
    prompt; so lengths are taken from ended requests where there are enough of them.
    """
    spec = replace(load, prompt_kind=PromptKind.RANDOM, num_requests=num_requests)
    if load.process is ArrivalProcess.BURST and not load.burst_period_s:
        spec = replace(spec, num_requests=None)
    ended = ended_well(requests)
    if len(ended) < LEAST_OBSERVED:
        return spec
    hits = [r.cached_tokens for r in ended if r.cached_tokens]
    if hits and not load.shared_prefix_share:
        spec = replace(spec, shared_prefix_share=len(hits) / len(ended), shared_prefix_tokens=round(median(hits)))
    return replace(
        spec,
        prompt_tokens=LengthSpec.empirical([r.prompt_tokens for r in ended]),
        output_tokens=LengthSpec.empirical([r.output_tokens for r in ended]),
    )


# -- the error against the live engine -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """What the live engine did lately, ready to be simulated and compared.

    Attributes:
        ended: requests that ended, in order of arrival; `live`: those under way.
        start_s, end_s: from the first arrival to the picture.
    """

    ended: tuple[RequestRecord, ...]
    live: tuple[RequestView, ...]
    records: tuple[StepRecord, ...]
    start_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        return self.end_s - self.start_s

    def arrivals_of(self, base: WhatIf) -> WhatIf:
        """The base with the same requests at the same times, those under way included."""
        under_way = [_as_record(view) for view in self.live]
        return replace(base, arrivals=live_arrivals([*self.ended, *under_way], base.model.vocab_size), load=None, trace=None)

    def same_load_on(self, base: WhatIf, load: LoadSpec | None) -> WhatIf:
        """The base with what is comparable with these requests.

        A closed loop is simulated as one, with the lengths that were seen: its users send when they have their answers, so the
        times at which they sent here say nothing about another pace. Everything else is the same requests at the same times.
        """
        if load is None or not load.is_closed:
            return self.arrivals_of(base)
        ample = 4 * (len(self.ended) + len(self.live))  # more than the span can hold: the loop must not run dry before it ends
        return replace(base, load=observed_load(load, self.ended, ample), arrivals=(), trace=None)


def live_run(snapshot: EngineSnapshot, records: Sequence[StepRecord], since_s: float = 0.0) -> LiveRun:
    """The latest requests of the live engine that ran under its present settings.

    Args:
        since_s: engine time of the latest change of settings.

    Raises:
        ConfigError: if too few requests have ended since.
    """
    config = snapshot.config.scheduler
    knobs = (config.max_num_seqs, config.max_num_batched_tokens)
    other = [r.start_s for r in records if (r.max_num_seqs, r.budget_tokens) != knobs]
    since_s = max([since_s, *other[-1:]])
    ended = ended_well(snapshot.recent_requests, since_s)
    if len(ended) < LEAST_CHECKED:
        raise ConfigError(f"{len(ended)} requests have ended under the present settings; {LEAST_CHECKED} are needed")
    start_s, end_s = ended[0].arrival_s, snapshot.time_s
    live = [v for v in (*snapshot.running, *snapshot.waiting, *snapshot.preempted) if v.arrival_s >= start_s]
    inside = tuple(r for r in records if r.start_s >= start_s)
    return LiveRun(tuple(ended), tuple(live), inside, start_s, end_s)


def compare_live(run: LiveRun, result: SimulationResult) -> tuple[Pair, ...]:
    """Predicted beside measured, figure by figure; throughput counts the tokens of the same requests on both sides."""
    measured = summarise(run.records, run.ended)
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
