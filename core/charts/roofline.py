"""The roofline: what each step computed and moved, under the ceilings of the machine, beside the model's curve.

    log FLOP/s |        ____________ compute
               |  cache/ /
               |      / / DRAM           dots: steps, x = FLOP/B, y = FLOP/s
               |     / /                 dashes: predicted, batch 1 .. max
               +------------------- log FLOP/B

Records, ceilings and a cost model in; data frames out. `roofline_spec` has the constant specification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import numpy as np
import numpy.typing as npt
import pandas as pd

from core.charts import formats
from core.cost_model import CostModel, cost_model
from core.devices import DeviceSpec
from core.executor import ExecutorInfo
from core.records import StepRecord
from core.roofline import CurvePoint, decode_curve
from core.snapshot import RooflineCeilings

FORWARD, WHOLE = "forward pass", "whole step"
"""Which time a dot divides by: the device's part of the step, or all of it with the host's work."""

HEADROOM = 1.7
"""The picture goes this far above the roof, so that its name has room."""

DOTS = 300
OLDEST = 255
"""Age of the oldest dot: a byte on the wire."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the picture is drawn under: a device, how its figures came about, and the host time a step adds."""

    device: DeviceSpec
    kind: str  # "measured" or "published"
    host_s: float = 0.0

    @property
    def predicting(self) -> DeviceSpec:
        """The device with the host's time as the fixed cost of a step."""
        return replace(self.device, step_overhead_s=self.host_s)


def measured_ceilings(ceilings: RooflineCeilings, host_s: float = 0.0) -> Ceilings:
    """The probe's ceilings as a device."""
    device = DeviceSpec(
        name=ceilings.device,
        peak_flops=ceilings.peak_flops,
        memory_bandwidth=ceilings.dram_bytes_per_s,
        memory_bytes=max(float(ceilings.working_set_bytes), 1.0),
        cache_bandwidth=ceilings.cache_bytes_per_s or 0.0,
        cache_bytes=ceilings.cache_bytes,
        measured=ceilings.measured,
    )
    return Ceilings(device, "measured", host_s)


def changes_in_words(ceilings: RooflineCeilings) -> str:
    """How the ceilings came to be higher than first probed, the newest first; "" if they are not."""
    words = [
        f"{c.name} raised from {formats.rate(c.before, _UNITS[c.name])} to {formats.rate(c.after, _UNITS[c.name])} by"
        f" {c.source} at step {formats.count(c.step)} ({formats.seconds(c.time_s)})"
        for c in reversed(ceilings.changes)
    ]
    return "; ".join(words)


_UNITS = {"compute": "FLOP", "DRAM": "B", "cache": "B"}


def model_of(info: ExecutorInfo) -> CostModel:
    """The cost model of what runs, from the bytes of its real tensors."""
    read, kv, coded = float(info.weight_bytes_read), float(info.kv_bytes_per_token), float(info.coded_bytes_read)
    return cost_model(info.spec, info.dtype, info.dtype, None, 1, read, kv, info.coded_tokens, coded)


def time_of(record: StepRecord, basis: str) -> float:
    """Seconds that a record's rates divide by."""
    return record.forward_s if basis == FORWARD else record.duration_s


def host_time(history: Sequence[StepRecord], basis: str) -> float:
    """Median host time of a step, s; 0 where the figure leaves the host out."""
    ran = [r.host_s for r in history if r.flops]
    return median(ran) if ran and basis == WHOLE else 0.0


def ages(count: int) -> npt.NDArray[np.uint8]:
    """Ages of `count` dots, oldest first: from OLDEST to 0."""
    return np.linspace(OLDEST if count > 1 else 0, 0, count).round().astype(np.uint8)


def dot_frame(history: Sequence[StepRecord], basis: str, within_s: tuple[float, float] | None = None) -> pd.DataFrame:
    """One row a step that computed something; `age` is 0 for the newest, OLDEST for the oldest of the last `DOTS`.

    Columns step, intensity (FLOP/B), flops_per_s, prefill_tokens, decode_tokens, ms, age, and lit where `within_s` is given.

    Args:
        within_s: (from, to) in engine time; steps that began within are lit.
    """
    ran = [r for r in history[-DOTS:] if r.flops and time_of(r, basis) > 0]
    times = [time_of(r, basis) for r in ran]
    frame = pd.DataFrame(
        {
            "step": [r.step for r in ran],
            "intensity": [r.intensity for r in ran],
            "flops_per_s": [r.flops / t for r, t in zip(ran, times, strict=True)],
            "prefill_tokens": [r.prefill_tokens for r in ran],
            "decode_tokens": [r.decode_tokens for r in ran],
            "ms": [1e3 * t for t in times],
            "age": ages(len(ran)),
        }
    )
    if within_s is not None:
        frame["lit"] = [within_s[0] <= r.start_s <= within_s[1] for r in ran]
    return frame


def modelled_dots(history: Sequence[StepRecord], device: DeviceSpec, within_s: tuple[float, float] | None = None) -> pd.DataFrame:
    """The same steps as they would be on another device: predicted seconds = max(FLOPs / peak, bytes / bandwidth)."""
    moved = [
        replace(r, forward_s=max(r.flops / device.peak_flops, r.moved_bytes / device.memory_bandwidth))
        for r in history[-DOTS:]
        if r.flops
    ]
    return dot_frame(moved, FORWARD, within_s)


def batches_up_to(most: int) -> list[int]:
    """Batch sizes of a curve: each up to 16, then about eight an octave, the largest always."""
    sizes = set(range(1, min(most, 16) + 1)) | {round(2 ** (k / 8)) for k in range(32, 200)}
    return sorted(b for b in sizes | {most} if 1 <= b <= most)


def curve_points(model: CostModel, under: Ceilings, context: int, most: int) -> tuple[CurvePoint, ...]:
    """Predicted decode steps for batch 1..most, every row with `context` cached tokens."""
    return decode_curve(model, under.predicting, context, batches_up_to(most))


def curve_frame(points: Sequence[CurvePoint]) -> pd.DataFrame:
    """Columns batch, intensity, flops_per_s, ms, label ("" except at powers of two and at the end), kind ("predicted")."""
    last = points[-1].batch if points else 0
    named = {p.batch for p in points if p.batch & (p.batch - 1) == 0 and p.batch * 1.5 < last} | {last}
    rows = [(p.batch, p.intensity, p.flops / p.time_s, 1e3 * p.time_s, str(p.batch) if p.batch in named else "") for p in points]
    frame = pd.DataFrame(rows, columns=["batch", "intensity", "flops_per_s", "ms", "label"])
    frame["kind"] = "predicted"
    return frame


def _half_decade(value: float, *, up: bool) -> float:
    """The next of ..., 0.1, 0.3, 1, 3, 10, ... beyond `value`, so that the axes rarely move."""
    power = math.floor(math.log10(value))
    steps = [10.0**power, 3 * 10.0**power, 10.0 ** (power + 1)]
    return min(s for s in steps if s >= value) if up else max(s for s in steps if s <= value)


def ceiling_frames(under: Ceilings, intensities: Sequence[float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lines (name, intensity, flops_per_s, label, side, kind) and ridge points (name, intensity, flops_per_s, label).

    Args:
        intensities: FLOP/B that the picture must show; the lines reach half a decade beyond.
    """
    ridges = [under.device.peak_flops / bandwidth for _, bandwidth in _slopes(under)]
    seen = [x for x in intensities if x > 0] or [1.0]
    low = _half_decade(0.7 * min(*seen, *ridges), up=False)
    high = _half_decade(2.5 * max(*seen, *ridges), up=True)
    return _ceiling_frames(under, low, high)


def _slopes(under: Ceilings) -> list[tuple[str, float]]:
    """(name, B/s), the lowest first."""
    device = under.device
    lowest = ("DRAM" if under.kind == "measured" else "memory", device.memory_bandwidth)
    return [lowest, ("cache", device.cache_bandwidth)] if device.cache_bandwidth else [lowest]


@lru_cache(maxsize=16)
def _ceiling_frames(under: Ceilings, low: float, high: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`ceiling_frames` between two intensities; the same objects again while nothing moves."""
    named, peak = _slopes(under), under.device.peak_flops
    ridges = [(name, peak / bandwidth) for name, bandwidth in named]
    origin = "" if under.kind == "measured" else f", {under.kind}"
    rows: list[tuple[str, float, float, str, str]] = []
    for k, (name, bandwidth) in enumerate(named):
        ridge = peak / bandwidth
        anchor = 1.25 * low if k == 0 else ridge
        text = f"{name} {formats.rate(bandwidth, 'B')}{origin}"
        rows.append((name, low, bandwidth * low, "", ""))
        rows.append((name, anchor, bandwidth * anchor, text, "right" if k == 0 else "corner"))
        if k == 0:
            rows.append((name, ridge, peak, "", ""))
    rows.append(("compute", min(x for _, x in ridges), peak, "", ""))
    rows.append(("compute", high, peak, f"compute {formats.rate(peak, 'FLOP')}{origin}", "above"))
    lines = pd.DataFrame(rows, columns=["name", "intensity", "flops_per_s", "label", "side"])
    lines["kind"] = under.kind
    marks = [(name, x, peak, f"ridge {formats.figures(x)}") for name, x in ridges]
    return lines, pd.DataFrame(marks, columns=["name", "intensity", "flops_per_s", "label"])


def roofline_data(dots: pd.DataFrame, points: Sequence[CurvePoint], under: Ceilings) -> dict[str, pd.DataFrame]:
    """The data sets of `roofline_spec` by name."""
    intensities = [*dots["intensity"].tolist(), *(p.intensity for p in points)]
    lines, ridges = ceiling_frames(under, intensities)
    corners = pd.DataFrame(
        {
            "intensity": [lines["intensity"].min(), lines["intensity"].max()],
            "flops_per_s": [lines["flops_per_s"].min(), HEADROOM * under.device.peak_flops],
        }
    )
    return {"ceilings": lines, "ridges": ridges, "curve": curve_frame(points), "dots": dots, "corners": corners}
