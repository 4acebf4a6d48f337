"""The status bar: one slim line that is the same on every page and never moves.

[||] running | SmolLM2-135M bf16 CPU | step 18 204 | 412 tok/s | 31 run 84 wait | KV 97 % | bound by KV memory | now
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.charts import formats
from core.clock import WallClock
from core.snapshot import EngineSnapshot
from pages.parts import engine_access
from pages.parts.element import LiveElement, trigger
from pages.parts.watching import watchers

AUTO = "auto"
RATES: dict[str, float | None] = {AUTO: None, "0.25 s": 0.25, "0.5 s": 0.5, "1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "off": None}
DEFAULT_RATE = AUTO
KEY = "status_bar"
_COMMANDS = ("start", "pause", "step_once", "reset", "acquire", "release")
_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}

_element = LiveElement("status_bar")
_clock = WallClock()


def rate_label() -> str:
    """The chosen refresh rate, as its label."""
    label = st.session_state.get("rate") or st.query_params.get("rate")
    return label if label in RATES else DEFAULT_RATE


def period_s() -> float | None:
    """Seconds between two refreshes at the chosen rate; None where refresh is off."""
    label = rate_label()
    return watchers.period_s() if label == AUTO else RATES[label]


def is_running(snapshot: EngineSnapshot) -> bool:
    """True while the engine steps whenever there is work."""
    return snapshot.state in ("running", "idle")


def values(snapshot: EngineSnapshot) -> list[dict[str, Any]]:
    """The cells between the controls and the clock, left to right."""
    info, pool, kpis = snapshot.info, snapshot.pool, snapshot.kpis
    record = snapshot.step_record
    model = info.model_label if info else snapshot.config.model
    dtype = info.dtype if info else snapshot.config.dtype
    device = info.device if info else snapshot.config.device
    busy = snapshot.num_running > 0 or snapshot.num_waiting > 0
    speed = kpis.output_tokens_per_s if busy else 0.0
    bound = record.bound_by if record and busy else "no load"
    held = snapshot.num_preempted
    return [
        {"key": "model", "text": model.removesuffix("-Instruct"), "title": info.fallback if info and info.fallback else model},
        {"key": "device", "text": f"{_DTYPES.get(dtype, dtype)} {device.split(',')[0]}", "title": f"{dtype} on {device}"},
        {"key": "step", "before": "step ", "text": formats.count(snapshot.step), "title": "Engine steps since the last reset"},
        {
            "key": "speed",
            "text": f"{formats.figures(speed)}{formats.THIN}tok/s",
            "title": f"Output tokens over the last {kpis.window_s:.0f} s",
        },
        {"key": "running", "text": formats.count(snapshot.num_running), "after": " run", "title": "Requests in the batch"},
        {
            "key": "waiting",
            "text": formats.count(snapshot.num_waiting + held),
            "after": " wait",
            "title": f"Requests in the queue, {held} of them preempted",
        },
        {
            "key": "kv",
            "before": "KV ",
            "text": formats.percent(pool.usage),
            "share": pool.usage,
            "title": f"{pool.live} of {pool.total} KV blocks live; {pool.cached} more cached for reuse, {pool.free} free",
        },
        {"key": "bound", "before": "bound by: ", "text": bound, "title": "What kept the batch of this step from being larger"},
    ]


def payload(snapshot: EngineSnapshot, *, controller: bool, holder: str, tick: str) -> dict[str, Any]:
    """Everything the bar shows, as plain data."""
    return {
        "state": snapshot.state,
        "running": is_running(snapshot),
        "ready": snapshot.state not in ("starting", "failed", "stopped"),
        "values": values(snapshot),
        "age": max(_clock.now() - snapshot.wall_time_s, 0.0) if snapshot.wall_time_s else 0.0,
        "period": period_s(),
        "rates": list(RATES),
        "rate": rate_label(),
        "tick": tick,
        "controller": controller,
        "role": "controller" if controller else "viewer",
        "role_help": _role_help(controller, holder),
    }


def _role_help(controller: bool, holder: str) -> str:
    if not controller:
        return f"{holder} has control; this session watches. Click to ask for control"
    return (
        "This session may turn the knobs. Click to give control back"
        if holder
        else "Nobody has control; the first command takes it"
    )


def run_command(name: str) -> engine_access.Answer:
    """Carry out a command of the bar."""
    if name not in _COMMANDS:
        return engine_access.Answer(False, f"the status bar has no command {name!r}")
    answer: engine_access.Answer = getattr(engine_access.engine(), name)()
    return answer


def _on_command() -> None:
    asked = trigger(KEY, "command")
    if isinstance(asked, dict):
        answer = run_command(str(asked.get("name")))
        if not answer.ok:
            st.toast(answer.message, icon=":material/block:")


def _on_rate() -> None:
    label = trigger(KEY, "rate")
    if label in RATES:
        st.session_state["rate"] = label
        st.session_state["rate_changed"] = True
        st.query_params["rate"] = label


def status_bar(snapshot: EngineSnapshot, *, tick_s: float | None) -> None:
    """Draw the bar; `tick_s` is what the latest tick cost in Python, s."""
    access = engine_access.engine()
    data = payload(snapshot, controller=access.is_controller, holder=access.holder, tick=formats.seconds(tick_s))
    with st.container(key="status_bar_row"):
        _element.draw(data, key=KEY, on_command_change=_on_command, on_rate_change=_on_rate)
