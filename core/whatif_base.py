"""The live engine as the base of a what-if: the law of its own steps, and its load as it was observed.

records ----- calibrate -----> law      config, pool, law -> WhatIf "as it is now"
ended requests -> lengths and prefixes as they really were -> the load again
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
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.prediction import this_machine
from core.records import RequestRecord, StepRecord
from core.roofline import IDEAL
from core.snapshot import EngineSnapshot
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
        coded_tokens=info.coded_tokens,
        coded_bytes_read=float(info.coded_bytes_read),
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
    prompt; so lengths are taken from ended requests where there are enough of them. All users of a loop are there already.
    """
    spec = replace(load, prompt_kind=PromptKind.RANDOM, num_requests=num_requests, ramp_s=0.0)
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
