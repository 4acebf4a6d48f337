"""Linked views of one moment: requests over time, blocks and roofline as canvases that point at the same request.

    +- requests over time (Gantt) -----------+  +- blocks -----+     pointing at a request in any of them, or in the
    |  -----====######====                   |  |  ::::##::::  |     sets above, shows it in all; pointing at a dot of
    |      ---===########xxxx###             |  +- roofline ---+     the roofline shows the requests of that step
    +----------------------------------------+  |   /~~~ . .   |
                                                +--------------+

All of it happens in the browser; the server sends the data of the tick and hears only of a click.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from core.charts import gantt, roofline, roofline_spec
from core.charts.arrow import table
from core.charts.style import Theme
from core.errors import ExportError
from core.records import StepRecord
from core.snapshot import EngineSnapshot, RequestView
from pages.parts.element import LiveElement

GANTT, STEPS_MAP = LiveElement("gantt"), LiveElement("steps_map")
MAX_DOTS = 90
LANE_PX = 8
_CODES = {phase: code for code, phase in enumerate(gantt.PHASES)}


def gantt_payload(rows: Sequence[RequestView], now_s: float, chosen: str | None) -> dict[str, Any]:
    """Lanes as [id, tenant, hue, [[phase, from, to], ...]], times in whole milliseconds after `base` (s)."""
    base = min((row.arrival_s for row in rows), default=now_s)

    def ms(time_s: float) -> int:
        return round(1e3 * (time_s - base))

    lanes = [
        [row.request_id, row.tenant, row.hue, [[_CODES[p], ms(a), ms(b)] for p, a, b in gantt.spans_of(row, now_s)]]
        for row in rows
    ]
    return {"rows": lanes, "base": base, "now": ms(now_s), "lane": LANE_PX, "lanes": gantt.MAX_LANES, "chosen": chosen}


def draw_gantt(snapshot: EngineSnapshot, chosen: str | None, *, key: str, on_pick: Callable[[], None]) -> None:
    """Requests over time."""
    GANTT.draw(gantt_payload(gantt.lanes(snapshot), snapshot.time_s, chosen), key=key, on_pick_change=on_pick)


def gantt_figure(snapshot: EngineSnapshot, theme: Theme) -> tuple[dict[str, Any], pa.Table]:
    """Requests over time as a chart for paper: specification and data."""
    return gantt.gantt_spec(theme), table(gantt.gantt_frame(gantt.lanes(snapshot), snapshot.time_s))


def steps_figure(snapshot: EngineSnapshot, history: Sequence[StepRecord], theme: Theme) -> tuple[dict[str, Any], None]:
    """The roofline in small as a chart for paper: specification with its data inside.

    Raises:
        ExportError: before the ceilings are measured.
    """
    if snapshot.ceilings is None or snapshot.info is None:
        raise ExportError("the ceilings are not measured yet")
    under = roofline.measured_ceilings(snapshot.ceilings)
    held = [row.computed_tokens for row in snapshot.running]
    context = max(sum(held) // len(held), 1) if held else 128
    most = snapshot.config.scheduler.max_num_seqs
    points = roofline.curve_points(roofline.model_of(snapshot.info), under, context, most)
    data = roofline.roofline_data(roofline.dot_frame(history[-MAX_DOTS:], roofline.FORWARD), points, under)
    return {**roofline_spec.roofline_spec(theme, 300), "datasets": {k: table(v) for k, v in data.items()}}, None


def steps_payload(snapshot: EngineSnapshot, history: Sequence[StepRecord], height: int) -> dict[str, Any] | None:
    """Dots [step, start (s), log10 FLOP/B, log10 FLOP/s, prefill share] and ceilings as log10; None before the probe has run."""
    ceilings = snapshot.ceilings
    if ceilings is None:
        return None
    ran = [r for r in history[-MAX_DOTS:] if r.flops and r.forward_s > 0 and r.moved_bytes]
    dots = [
        [
            r.step,
            round(r.start_s, 3),
            round(math.log10(r.intensity), 3),
            round(math.log10(r.flops / r.forward_s), 3),
            round(r.prefill_tokens / max(r.prefill_tokens + r.decode_tokens, 1), 1),
        ]
        for r in ran
    ]
    slopes = [["DRAM", ceilings.dram_bytes_per_s]]
    if ceilings.cache_bytes_per_s:
        slopes.append(["cache", ceilings.cache_bytes_per_s])
    return {
        "dots": dots,
        "peak": math.log10(ceilings.peak_flops),
        "slopes": [[name, math.log10(rate)] for name, rate in slopes],
        "height": height,
        "words": "The Roofline page has the figures",
    }


def draw_steps_map(data: dict[str, Any], *, key: str) -> None:
    """The roofline in small."""
    STEPS_MAP.draw(data, key=key)
