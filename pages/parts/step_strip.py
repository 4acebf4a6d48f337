"""The step that was picked in a figure: its facts, the requests that were in it, and a way to look at it.

    step 18 204: 31 decode + 0 prefill tokens, 9.31 FLOP/B, 4.10 ms, bound by load      [Go to this step]
    [r-000412] [r-000415] ...

Clicking a request chooses it on all pages, so that the figure circles its other steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from core.charts import formats
from core.records import StepRecord
from core.snapshot import EngineSnapshot, RequestView
from pages.parts import engine_access, travel
from pages.parts.element import LiveElement, trigger
from pages.parts.request_sets import CHOSEN, chosen_request

KEY = "step_strip"
INVITATION = "Click a dot to see which requests were in its step, and to go there."
_element = LiveElement("step_strip")


def life(row: RequestView | None) -> tuple[float, float] | None:
    """From when to when a request was in the batch, engine time in s; None if it never was."""
    if row is None or row.admitted_s is None:
        return None
    return row.admitted_s, math.inf if row.finished_s is None else row.finished_s


def members(snapshot: EngineSnapshot, record: StepRecord) -> list[RequestView]:
    """The requests of a picture that were in the batch of a step; those that ended long ago are in no picture."""
    rows = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
    at = record.start_s + record.duration_s / 2

    def inside(row: RequestView) -> bool:
        span = life(row)
        return span is not None and span[0] <= at <= span[1] and not any(a <= at < b for a, b in row.preempted_spans_s)

    return sorted((row for row in rows if inside(row)), key=lambda row: row.request_id)


def payload(snapshot: EngineSnapshot, history: Sequence[StepRecord], step: int | None) -> dict[str, Any]:
    """Everything the strip shows, as plain data."""
    nothing: dict[str, Any] = {"step": None, "words": INVITATION, "requests": [], "chosen": None}
    if step is None:
        return nothing
    record = next((r for r in reversed(history) if r.step == step), None)
    if record is None:
        return nothing | {"words": f"Step {formats.count(step)} is not among the steps of this figure any more."}
    rows = members(snapshot, record)
    ran = record.prefill_requests + record.decode_requests
    lost = f" {len(rows)} of its {formats.count(ran)} requests are still known." if len(rows) < ran else ""
    words = (
        f"Step {formats.count(step)} · {record.kind}: {formats.count(record.decode_tokens)} decode +"
        f" {formats.count(record.prefill_tokens)} prefill tokens, {formats.figures(record.intensity)} FLOP/B,"
        f" {formats.seconds(record.duration_s)}, bound by {record.bound_by}.{lost}"
    )
    return {"step": step, "words": words, "requests": [[r.request_id, r.hue] for r in rows], "chosen": chosen_request()}


def picture_with(pictures: Sequence[EngineSnapshot], step: int) -> int:
    """The step of the first kept picture by which a step had run, so that its figures still have it."""
    return next((p.step for p in pictures if p.step >= step), step)


def _on_look() -> None:
    asked = trigger(KEY, "look")
    step = asked.get("step") if isinstance(asked, dict) else None
    if isinstance(step, int):
        travel.choose_step(picture_with(engine_access.engine().pictures(), step))


def _on_pick() -> None:
    asked = trigger(KEY, "pick")
    request = asked.get("request") if isinstance(asked, dict) else None
    if isinstance(request, str):
        st.session_state[CHOSEN] = None if request == chosen_request() else request  # the page's own choice of a request


def draw(snapshot: EngineSnapshot, history: Sequence[StepRecord], step: int | None) -> None:
    """Draw the strip; `step` is None while nothing is picked."""
    _element.draw(payload(snapshot, history, step), key=KEY, on_look_change=_on_look, on_pick_change=_on_pick)
