"""Fit the law of `core.step_timer` to measured steps, and say how well it fits.

    minimise  sum rho((predicted - measured) / measured)  +  pull towards the two measured ceilings where no step has been

rho is the soft-L1 loss, so a step in which the machine did something else counts little. All coefficients stay at or
above 0, the law never falls, and a row never costs more than a row of a larger step. Linear in the coefficients:
iteratively reweighted bounded least squares, a few milliseconds for a thousand steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from core.cost_model import CostModel
from core.devices import DeviceSpec
from core.errors import ConfigError
from core.pace import paced
from core.records import StepRecord
from core.robust_fit import robust_fit
from core.snapshot import RooflineCeilings
from core.step_residuals import (
    ErrorSummary,
    Observation,
    Residual,
    between_steps_s,
    observe,
    residuals,
    run_factor,
    summarise_errors,
)
from core.step_timer import KNOTS, CalibratedTimer, StepCoefficients, roofline_coefficients

Floats = npt.NDArray[np.float64]
MIN_STEPS = 24
MAX_FIT_STEPS = 6000
COARSE_PULL = 0.001
PULL = 0.02  # weight of the start values: as much as one step that is off by this share
_FIXED_SCALE_S, _ROW_SCALE_S, _TOKEN_SCALE_S = 1e-4, 1e-6, 1e-7


def measured_device(ceilings: RooflineCeilings, memory_bytes: float, step_overhead_s: float = 0.0) -> DeviceSpec:
    """ "This machine" as a device: the probe's ceilings."""
    return DeviceSpec(
        name=ceilings.device,
        peak_flops=ceilings.peak_flops,
        memory_bandwidth=ceilings.dram_bytes_per_s,
        memory_bytes=memory_bytes,
        cache_bandwidth=ceilings.cache_bytes_per_s or 0.0,
        cache_bytes=ceilings.cache_bytes,
        step_overhead_s=step_overhead_s,
        measured=ceilings.measured,
        source=f"measured on this machine, {ceilings.dtype}",
    )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted law with its residuals.

    Attributes:
        fitted: errors on the steps that the law was fitted to; `held_out`: on others, None if none were kept back.
        by_kind: errors of decode, prefill and mixed steps (held-out ones where there are any).
        fixed_s: predicted cost of a step before its first token: what a step costs whatever is in it.
    """

    coefficients: StepCoefficients
    model: CostModel
    fitted: ErrorSummary
    held_out: ErrorSummary | None
    by_kind: tuple[tuple[str, ErrorSummary], ...]
    residuals: tuple[Residual, ...]
    source: str

    @property
    def fixed_s(self) -> float:
        return self.coefficients.fixed_s + self.coefficients.host_fixed_s

    @property
    def error(self) -> ErrorSummary:
        """The errors to show: held-out steps if there are any."""
        return self.held_out or self.fitted

    def timer(self, model: CostModel | None = None) -> CalibratedTimer:
        """The law on its model, or on another one on the same machine."""
        return CalibratedTimer(model or self.model, self.coefficients, self.source)


def calibrate(
    records: Sequence[StepRecord],
    model: CostModel,
    device: DeviceSpec,
    *,
    held_out_every: int = 3,
    parameter_bytes: float | None = None,
) -> Calibration:
    """Fit the law to measured steps.

    Args:
        model: of the engine that ran the steps.
        device: the measured ceilings, from which the fit starts and to which it returns where no step has been.
        held_out_every: each n-th step is kept back to judge the fit; 0 keeps none.
        parameter_bytes: bytes a matrix parameter takes in memory; None reads it from the model.

    Raises:
        ConfigError: if fewer than MIN_STEPS steps can be read.
    """
    seen = [o for o in (observe(r, model) for r in records if r.kind == "measured") if o is not None]
    if len(seen) < MIN_STEPS:
        raise ConfigError(f"a calibration needs at least {MIN_STEPS} measured steps, found {len(seen)}; let the engine run on")
    kept = [o for i, o in enumerate(seen) if held_out_every and i % held_out_every == held_out_every - 1]
    train = [o for i, o in enumerate(seen) if not held_out_every or i % held_out_every != held_out_every - 1]
    train = train[:: -(-len(train) // MAX_FIT_STEPS)]
    each = parameter_bytes or (model.dense_bytes + model.head_bytes) * 2.0 / (model.layer_flops_per_token + model.head_flops)
    law = _fit(train, model, roofline_coefficients(device, each, model.dense_bytes + model.head_bytes))
    law = _centred(law, residuals(train, CalibratedTimer(model, law)))
    source = f"fitted to {len(train)} measured steps of {model.spec.name}"
    timer = CalibratedTimer(model, law, source)
    on_train, on_kept = residuals(train, timer), residuals(kept, timer)
    judged = on_kept or on_train
    kinds = sorted({r.kind for r in judged})
    return Calibration(
        coefficients=paced(replace(law, between_s=between_steps_s(records), run_factor=run_factor(on_train)), train, model),
        model=model,
        fitted=summarise_errors(on_train),
        held_out=summarise_errors(on_kept) if on_kept else None,
        by_kind=tuple((k, summarise_errors([r for r in judged if r.kind == k])) for k in kinds),
        residuals=tuple(judged),
        source=source,
    )


def _centred(law: StepCoefficients, on_train: Sequence[Residual]) -> StepCoefficients:
    """The law times the median of measured / predicted on its own steps, so that half of them are slower than it says.

    On noisy steps `never_dearer` and the bounds lift some knots and lower none; pace would take that for a quick machine.
    """
    factor = float(np.median([r.measured_s / r.predicted_s for r in on_train]))
    times = ("fixed_s", "row_s", "kv_byte_s", "attention_flop_s", "host_fixed_s", "host_row_s", "host_token_s")
    scaled = {name: factor * getattr(law, name) for name in times}
    return replace(law, law_s=tuple(factor * v for v in law.law_s), **scaled)


def never_dearer(law_s: Floats, coded_tokens: int = 0) -> Floats:
    """The law raised so that a row never costs more than a row of a larger step: products get more efficient with rows.

    A few steps between two knots may else be explained by a rate of products that no larger step reaches.

    Args:
        coded_tokens: steps of at most so many tokens read a coded copy of the weights; they may be cheaper a row than
            the next larger ones.
    """
    knots = np.array(KNOTS, dtype=np.float64)
    each = law_s / knots
    few = knots <= coded_tokens
    for part in (few, ~few):
        each[part] = np.maximum.accumulate(each[part][::-1])[::-1]
    raised: Floats = np.maximum.accumulate(each * knots)
    return raised


# -- the fit -----------------------------------------------------------------------------------------------


def hats(rows: Floats) -> Floats:
    """Weights with which each knot's law value enters at `rows` rows: (n, knots); zero rows weigh nothing."""
    knots = np.array(KNOTS, dtype=np.float64)
    at = np.clip(np.searchsorted(knots, rows, side="right"), 1, len(knots) - 1)
    share = (rows - knots[at - 1]) / (knots[at] - knots[at - 1])
    weights = np.zeros((len(rows), len(knots)))
    index = np.arange(len(rows))
    weights[index, at - 1] = 1.0 - share
    weights[index, at] = share
    weights[rows <= 0] = 0.0
    return weights


def _fit(seen: Sequence[Observation], model: CostModel, prior: StepCoefficients) -> StepCoefficients:
    column = {
        name: np.array([getattr(o.run, name) for o in seen], dtype=np.float64)
        for name in ("rows", "query_tokens", "sampled", "context_tokens", "attended_tokens")
    }
    forward = np.array([o.forward_s for o in seen])
    host = np.array([o.host_s for o in seen])
    head = model.spec.head_parameters / model.tensor_parallel
    met = model.layer_flops_per_token / 2.0
    by_knot = hats(column["query_tokens"]) * met + hats(column["sampled"]) * head
    steps_up = by_knot @ np.tril(np.ones((len(KNOTS), len(KNOTS))))  # law_k = sum of increments up to k
    ones = np.ones(len(seen))
    design = np.column_stack(
        [
            ones,
            column["rows"],
            steps_up,
            model.kv_read_per_token * column["context_tokens"],
            model.attention_flops_per_pair * column["attended_tokens"],
        ]
    )
    trust = 1.0 / (forward + host)
    start = _coarse_start(design, column, met, head, forward, trust, prior, model)
    scale = np.concatenate(([_FIXED_SCALE_S, _ROW_SCALE_S], start))
    target = np.concatenate(([0.0, 0.0], np.ones(len(start))))
    found = robust_fit(design, forward, scale, target, trust, PULL) * scale

    outside = np.column_stack([ones, column["rows"], column["query_tokens"]])
    outside_scale = np.array([_FIXED_SCALE_S, _ROW_SCALE_S, _TOKEN_SCALE_S])
    around = robust_fit(outside, host, outside_scale, np.zeros(3), trust, PULL) * outside_scale
    return StepCoefficients(
        fixed_s=float(found[0]),
        row_s=float(found[1]),
        law_s=tuple(float(v) for v in never_dearer(np.cumsum(found[2 : 2 + len(KNOTS)]), model.coded_tokens)),
        kv_byte_s=float(found[-2]),
        attention_flop_s=float(found[-1]),
        swap_byte_s=prior.swap_byte_s,
        host_fixed_s=float(around[0]),
        host_row_s=float(around[1]),
        host_token_s=float(around[2]),
    )


def _coarse_start(
    design: Floats, column: dict[str, Floats], met: float, head: float, forward: Floats, trust: Floats, prior: StepCoefficients,
    model: CostModel,
) -> Floats:  # fmt: skip
    """Start values of the law's increments, the KV and the attention cost: a law of one level and one slope.

    Where small steps read a coded copy, the level of the others is higher by the bytes that coding saves.

    The published or probed ceilings can be several times off what a step reaches; four figures are found from any few
    steps, so that the fine fit is pulled towards this machine and not towards a data sheet.
    """
    knots = np.array(KNOTS, dtype=np.float64)
    slope = (prior.law_s[-1] - prior.law_s[-2]) / (knots[-1] - knots[-2])
    linear = met * (column["query_tokens"] - 1.0) + head * np.maximum(column["sampled"] - 1.0, 0.0)
    more = 1.0 / model.coded_share - 1.0  # 0 without a coded copy
    level = design[:, 2] * (1.0 + more * (column["query_tokens"] > model.coded_tokens))
    coarse = np.column_stack([design[:, 0], design[:, 1], level, linear, design[:, -2], design[:, -1]])
    scale = np.array([_FIXED_SCALE_S, _ROW_SCALE_S, prior.law_s[0], slope, prior.kv_byte_s, prior.attention_flop_s])
    target = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    found = np.maximum(robust_fit(coarse, forward, scale, target, trust, COARSE_PULL), 0.01 * target) * scale
    increments = np.concatenate(([found[2]], found[3] * np.diff(knots)))
    increments[np.searchsorted(knots, model.coded_tokens + 1)] += more * found[2]
    return np.concatenate((increments, found[4:]))
