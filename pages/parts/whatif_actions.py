"""What one does with a what-if: put it on the live engine, save it as a scenario, start a real server with it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from core.config import CacheConfig, EngineConfig
from core.models_catalog import MODELS
from core.scenario import Scenario, TraceSource
from core.scenario_text import scenario_toml
from core.traces.writer import TIME_UNIT, trace_jsonl, trace_of
from core.vllm_flags import A_MODEL, sglang_command, vllm_command
from core.whatif import WhatIf
from pages.parts import engine_access, frame, scenario_file
from pages.parts.engine_access import Answer
from pages.parts.whatif_form import Choice
from pages.parts.whatif_run import Known

_ANSWER = "whatif_answer"
TRACE_FILE = "what-if-load.jsonl"


def _config(live: EngineConfig, target: WhatIf) -> EngineConfig:
    """The what-if as an engine's configuration."""
    setup = target.setup()
    entry = next((e for e in MODELS.values() if e.spec == target.model), None)
    cache = replace(
        live.cache,
        block_size=setup.cache.block_size,
        num_blocks=setup.cache.num_blocks,
        enable_prefix_caching=setup.cache.enable_prefix_caching,
        eviction_policy=setup.cache.eviction_policy,
        num_swap_blocks=setup.cache.num_swap_blocks,
    )
    same = target.model.name == (live.spec.name if live.spec else target.model.name) and entry is None
    model = live.model if same or entry is None else entry.repo
    return replace(live, model=model, scheduler=target.scheduler, cache=cache, max_model_len=target.max_model_len)


def _is_named(target: WhatIf) -> bool:
    """True if the what-if's model is the live one or one of the catalogue: a pasted geometry has no name to start a server by."""
    info = engine_access.engine().latest().info
    return any(target.model == e.spec for e in MODELS.values()) or info is None or target.model == info.spec


def _apply(target: WhatIf, cache: CacheConfig | None, choice: Choice) -> None:
    knobs = {"scheduler": target.scheduler}
    access = engine_access.engine()
    load = choice.load.spec if choice.load is not None else None
    live_load = access.load
    changes = {}
    if load is not None and live_load is not None and load.process == live_load.process:
        names = ("users", "rate_per_s", "burst_size")
        changes = {n: getattr(load, n) for n in names if getattr(load, n) != getattr(live_load, n)}
    st.session_state[_ANSWER] = access.configure(**knobs, cache=cache, load=changes or None)


def apply_button(choice: Choice, target: WhatIf) -> None:
    """Put the knobs on the live engine; hardware, model and a recorded load stay as they are."""
    access = engine_access.engine()
    live = access.latest().config
    here = target.coefficients is not None or target.device.measured
    cache = _config(live, target).cache if here else None
    kept = [] if here else ["hardware", "pool size"]
    note = f"At the next step boundary. Not applied: {', '.join([*kept, 'model'])}." if kept else "At the next step boundary."
    st.button(
        "Apply to live engine", type="primary", key="whatif_apply", on_click=_apply, args=(target, cache, choice),
        disabled=not access.is_controller or not (choice.changed or _load_changed(choice)), help=note,
    )  # fmt: skip
    answer: Answer | None = st.session_state.pop(_ANSWER, None)
    if answer is not None and answer.ok:
        st.success("In force from the next step on.", icon=":material/check:")
    elif answer is not None:
        st.error(frame.plain(answer.message), icon=":material/block:")


def _load_changed(choice: Choice) -> bool:
    return choice.load is not None and choice.load.given != choice.load.changed


def files_tab(known: Known, choice: Choice, target: WhatIf) -> None:
    """Apply, save, and the commands of real servers."""
    live = engine_access.engine().latest().config
    config = _config(live, target)
    here = target.coefficients is not None or target.device.measured
    recorded = _recorded(target)
    scenario = Scenario(
        name="what-if",
        description="" if _is_named(target) else f"knobs only: a scenario cannot hold the geometry of {target.model.name}",
        engine=replace(config, spec=None),
        load=choice.load.spec if choice.load is not None and recorded is None else None,
        trace=None if recorded is None else TraceSource(TRACE_FILE, time_unit=TIME_UNIT),
        device=None if here else target.device,
        tensor_parallel=target.tensor_parallel,
        gpu_memory_utilization=target.gpu_memory_utilization,
    )
    with st.container(horizontal=True, key="whatif_actions"):
        apply_button(choice, target)
        st.download_button(
            "Save as scenario", scenario_toml(scenario), "scenario.toml", "application/toml", key="whatif_save",
            help="TOML; the watched file below takes it, and so does a sweep.",
        )  # fmt: skip
        if recorded is not None:
            st.download_button(
                "Save its load", recorded, TRACE_FILE, "application/jsonl", key="whatif_save_load",
                help=f"The scenario names this file, {TRACE_FILE}; put it beside the scenario.",
            )  # fmt: skip
    _commands(config if _is_named(target) else replace(config, model=A_MODEL), target, here)
    scenario_file.watched()


def _recorded(target: WhatIf) -> str | None:
    """The load as the rows of a trace file, where it is a trace, a mix of tenants or requests that came; None if drawn."""
    if target.arrivals:
        return trace_jsonl(trace_of(target.arrivals), target.rate)
    return trace_jsonl(target.trace, target.rate) if target.trace is not None else None


def _commands(config: EngineConfig, target: WhatIf, here: bool) -> None:
    kv = target.kv_dtype if target.kv_dtype.startswith("fp8") else None
    share = None if here or target.num_blocks else target.gpu_memory_utilization
    options = {"tensor_parallel": target.tensor_parallel, "kv_dtype": kv, "gpu_memory_utilization": share}
    columns = st.columns(2, gap="medium")
    for column, command in zip(columns, (vllm_command(config, **options), sglang_command(config, **options)), strict=True):
        with column:
            frame.figure_head(f"The same on {command.server}", f"{len(command.notes)} knobs have no exact counterpart")
            st.code(command.text, language="bash", wrap_lines=True)
            if command.notes:
                st.dataframe(
                    pd.DataFrame(command.notes, columns=["knob", "what takes its place"]), hide_index=True,
                    key=f"notes_{command.server}", row_height=36,
                )  # fmt: skip
