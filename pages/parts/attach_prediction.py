"""Predicted beside observed: the configuration and the load of a watched server, simulated by the same scheduler.

[Predict]   observed over 2 min  |  predicted        [Open in What-if]   [scenario.toml]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from core.attach.forecast import FIGURES, OBSERVED_S, Prediction, Taken, observed_figure, take
from core.attach.scraper import TargetState
from core.charts import formats
from core.devices import DEVICES, DeviceSpec
from core.errors import BatchscopeError
from core.load_spec import ArrivalProcess
from core.models_catalog import MODELS
from core.sim_result import SimulationResult
from pages.parts import frame, ticker
from pages.parts.engine_access import Answer

_PREDICTION, _ANSWER = "attach_prediction", "attach_prediction_answer"
WHAT_IF = Path(__file__).resolve().parents[1] / "what_if.py"


def shown(name: str, value: float | None) -> str:
    """A figure with its unit."""
    if name.endswith("share"):
        return formats.percent(value)
    if name.endswith(("p50", "p95", "p99")):
        return formats.seconds(value)
    return formats.figures(value)


def rows(taken: Taken, result: SimulationResult | None) -> pd.DataFrame:
    """One row a figure: observed, predicted, predicted / observed."""
    found = []
    for name, label in FIGURES:
        seen = observed_figure(taken.observed, name)
        made = result.figure(name) if result else None
        ratio = made / seen if made is not None and seen else None
        found.append(
            {
                "figure": label,
                "observed": shown(name, seen),
                "predicted": shown(name, made),
                "predicted / observed": formats.figures(ratio),
            }
        )
    return pd.DataFrame(found)


def _predict(state: TargetState, now_s: float, device: DeviceSpec | None) -> None:
    old: Prediction | None = st.session_state.get(_PREDICTION)
    if old is not None:
        old.cancel()
    try:
        st.session_state[_PREDICTION] = Prediction(take(state, now_s, device=device))
        st.session_state.pop(_ANSWER, None)
    except BatchscopeError as error:
        st.session_state[_ANSWER] = Answer(False, str(error))


def form_values(taken: Taken) -> dict[str, Any]:
    """The what-if as values of the What-if page's form, whose widgets are named "w_" and the knob."""
    w, load = taken.whatif, taken.whatif.load
    assert load is not None
    here = w.device.name not in DEVICES
    values: dict[str, Any] = {
        "w_device": "this machine" if here else w.device.name,
        "w_max_num_seqs": w.scheduler.max_num_seqs,
        "w_max_num_batched_tokens": w.scheduler.max_num_batched_tokens,
        "w_block_size": w.block_size,
        "w_enable_prefix_caching": w.enable_prefix_caching,
        "w_requests": load.num_requests,
        "w_prompt_tokens": round(load.prompt_tokens.mean),
        "w_output_tokens": round(load.output_tokens.mean),
    }
    name = next((n for n, entry in MODELS.items() if entry.spec == w.model), "")
    values |= {"w_model": name} if name else {}
    values |= {"w_num_blocks" if here else "w_pool": w.num_blocks} if w.num_blocks else {}
    values |= {} if here else {"w_tp": w.tensor_parallel}
    is_closed = load.process is ArrivalProcess.CLOSED_LOOP
    return values | ({"w_users": load.users} if is_closed else {"w_rate_per_s": load.rate_per_s})


def _open(job: Prediction | None) -> None:
    """Fill the form of What-if and go there; a press that is only read while drawing can be lost between two ticks."""
    if job is not None:
        st.session_state.update(form_values(job.taken))
        ticker.go_to(WHAT_IF)


def prediction(state: TargetState, now_s: float, device: DeviceSpec | None) -> None:
    """Draw the button, the table and what was assumed."""
    frame.figure_head(
        "What would this product's scheduler do with that configuration and load?",
        f"observed over the last {formats.seconds(OBSERVED_S)} · predicted by the roofline of its device",
        how="A prediction knows the ceilings, the pool and the load, not the host or the kernels: the gap is their share.",
    )
    job: Prediction | None = st.session_state.get(_PREDICTION)
    current = job if job is not None and job.taken.name == state.name else None
    with st.container(horizontal=True, key="attach_predict_row"):
        st.button("Take configuration and load, predict", key="attach_predict", on_click=_predict, args=(state, now_s, device))
        st.download_button(
            "Scenario file",
            current.taken.scenario if current else "",
            "observed.toml",
            key="attach_scenario",
            disabled=current is None,
            on_click="ignore",
        )
        st.button("Open in What-if", key="attach_whatif", on_click=_open, args=(current,), disabled=current is None)
    answer: Answer | None = st.session_state.get(_ANSWER)
    if answer is not None and not answer.ok:
        st.error(frame.plain(answer.message), icon=":material/block:")
    elif current is None:
        frame.empty("Nothing predicted yet for this server.", key="attach_prediction", height=120)
    elif current.message:
        st.error(frame.plain(current.message), icon=":material/block:")
    else:
        if current.result is None:
            st.caption(f"Simulating: {current.done_requests} of {current.taken.whatif.load.num_requests} requests have ended.")
        left, right = st.columns([0.55, 0.45], gap="large")
        with left:
            st.dataframe(rows(current.taken, current.result), hide_index=True, key="attach_pairs", height=388)
        with right:
            frame.points("Taken from the server, or assumed", current.taken.assumptions)
