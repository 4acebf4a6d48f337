"""The tabs under the roofline: intensity, bytes, useful work and host time by step, and intensity by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, kv, roofline, step_cost, style
from core.charts.arrow import table
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import frame

LINE_STEPS = 300
TABS = ("Intensity and batch", "Bytes by step", "Useful and wasted", "Host time", "Intensity by batch size")


def draw_named(
    spec: dict[str, Any], data: dict[str, pd.DataFrame], *, key: str, alt: str, picks: Sequence[str] = ()
) -> dict[str, Any]:
    """A chart with several data sets; what is picked in it, as of `frame.chart`."""
    sets = {name: table(part) for name, part in data.items()}
    return frame.chart(None, {**spec, "datasets": sets}, key=key, alt=alt, picks=picks)


def _intensity(history: Sequence[StepRecord]) -> None:
    ground = frame.theme()
    rows = step_cost.intensity_frame(history)
    how = "FLOP/B above, requests in the step below."
    frame.figure_head("How do intensity and batch move together?", frame.span_of(history), how=how, on_screen=kv.HOW_TO_ZOOM)
    spec = step_cost.by_step_spec(ground, "intensity", "FLOP/B", ground.text)
    frame.chart(table(rows[["step", "intensity"]]), spec, key="intensity", alt="Arithmetic intensity by step")
    spec = step_cost.by_step_spec(ground, "rows", "requests", style.colour("decode", ground))
    frame.chart(table(rows[["step", "rows"]]), spec, key="batch", alt="Requests in the step, by step")


def _bytes(history: Sequence[StepRecord]) -> None:
    how = "Weights cost the same whatever the batch; KV read grows with every token of context."
    frame.figure_head("What does a step read and write?", frame.span_of(history), how=how)
    spec = step_cost.stacked_spec(frame.theme(), step_cost.BYTE_PARTS, "bytes a step", "~s", 240)
    alt = "Weights, KV read, KV written and swapped bytes by step, stacked"
    frame.chart(table(step_cost.bytes_frame(history)), spec, key="bytes", alt=alt)


def _useful(history: Sequence[StepRecord]) -> None:
    """What of a step's work and traffic served a token: all of it, but for the padding and held rows of a fixed batch."""
    flops = sum(r.flops for r in history)
    share = sum(r.useful_flops for r in history) / flops if flops else None
    frame.figure_head(
        "How much of the work is of use?",
        frame.span_of(history),
        how=f"{formats.percent(share)} of the FLOPs of these steps. Grey: padding, and rows held after their end.",
    )
    for part, title, unit in (("flops", "FLOPs a step", "~s"), ("kv", "KV bytes a step", "~s")):
        spec = step_cost.stacked_spec(frame.theme(), step_cost.USE_PARTS, title, unit, 150)
        data = table(step_cost.use_frame(history, part))
        frame.chart(data, spec, key=f"useful_{part}", alt=f"{title}: useful and wasted, stacked")


def _host(history: Sequence[StepRecord], share: float) -> None:
    frame.figure_head(
        "How long does the host hold the device up?",
        frame.span_of(history),
        how=f"Everything outside the forward pass, now {formats.percent(share)} of the time; transfer is the pipe to the worker.",
    )
    spec = step_cost.stacked_spec(frame.theme(), step_cost.HOST_PARTS, "µs a step", "whole", 240)
    frame.chart(table(step_cost.host_frame(history)), spec, key="host", alt="Host time by part and step, stacked")


def _by_batch(snapshot: EngineSnapshot, history: Sequence[StepRecord], context: int) -> None:
    most = snapshot.config.scheduler.max_num_seqs
    coded = snapshot.info.coded_tokens if snapshot.info else 0
    kink = f" Up to {coded} tokens a step reads weights coded without loss, three quarters of the bytes." if coded else ""
    frame.figure_head(
        "Why does intensity stop growing with the batch?",
        f"context {formats.count(context)} tokens · predicted, dots are steps that ran",
        how="Weights are read once for all, alone they give 2 × batch / bytes a weight; each sequence adds KV bytes of its own."
        + kink,
    )
    model = roofline.model_of(snapshot.info) if snapshot.info else None
    data = step_cost.intensity_by_batch(model, context, most, history)
    alt = "FLOP/B by batch size, with and without KV traffic"
    draw_named(step_cost.intensity_by_batch_spec(frame.theme()), data, key="by_batch", alt=alt)


def draw(snapshot: EngineSnapshot, history: Sequence[StepRecord], context: int) -> None:
    """The tabs; they need no ceilings, so they are there before the probe."""
    recent = history[-LINE_STEPS:]
    drawings = (
        lambda: _intensity(recent),
        lambda: _bytes(recent),
        lambda: _useful(recent),
        lambda: _host(recent, snapshot.kpis.host_share),
        lambda: _by_batch(snapshot, history, context),
    )
    for tab, show in zip(st.tabs(TABS, key="roofline_details", bind="query-params"), drawings, strict=True):
        with tab:
            if tab.open:
                show()
