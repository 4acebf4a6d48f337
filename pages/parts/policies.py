"""Pickers of the scheduling policies, each with its one sentence, and the tenants' weights and quotas.

Drawn outside the ticking part of the page, so that a list that is open stays open.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from core.config import TenantConfig
from core.errors import ConfigError
from core.policies import Policy, catalogue
from core.snapshot import EngineSnapshot
from pages.parts import frame
from pages.parts.engine_access import Access, Answer, engine
from pages.parts.settings import is_asked

LABELS = {
    "queue_policy": "Queue order",
    "batch_policy": "Batch composition",
    "admission_policy": "Admission",
    "preemption_mode": "Preemption",
    "victim_policy": "Victim",
    "eviction_policy": "Cache eviction",
    "admission_moment": "Moment of admission",
}
_CACHE_KNOBS = ("eviction_policy",)
_ANSWER = "policies_answer"
COLUMNS = ("tenant", "weight", "seats", "blocks", "tokens/s")


def _change(knob: str, key: str, drawn: str) -> None:
    access = engine()
    config = access.latest().config
    if not is_asked(key, drawn, str(getattr(config.cache if knob in _CACHE_KNOBS else config.scheduler, knob))):
        return
    value = str(st.session_state[key])
    change = access.set_cache if knob in _CACHE_KNOBS else access.set_scheduler
    extra: dict[str, Any] = {}
    if knob == "preemption_mode" and value == "swap" and access.latest().config.cache.num_swap_blocks == 0:
        answer = access.set_cache(num_swap_blocks=access.latest().config.cache.num_blocks)
        if not answer.ok:
            st.session_state[_ANSWER] = answer
            return
    st.session_state[_ANSWER] = change(**{knob: value}, **extra)


def _pick(knob: str, choices: tuple[Policy, ...], now: str, locked: bool) -> None:
    """One policy. The key holds the value in force, so a change made elsewhere shows at once."""
    values = [str(c.value) for c in choices]
    by_value = {str(c.value): c for c in choices}
    key = f"policy_{knob}_{now}"
    st.selectbox(
        LABELS[knob],
        values,
        index=values.index(now),
        format_func=lambda v: by_value[v].label,
        key=key,
        on_change=_change,
        args=(knob, key, now),
        disabled=locked,
    )
    st.caption(frame.plain(by_value[now].explain))


@st.fragment
def pickers() -> None:
    """All policy knobs, four in a row, and what became of the latest change."""
    access = engine()
    config = access.latest().config
    locked = not access.is_controller
    answer: Answer | None = st.session_state.get(_ANSWER)
    knobs = list(catalogue().items())
    for first in range(0, len(knobs), 4):
        columns = st.columns(4, gap="medium")
        for column, (knob, choices) in zip(columns, knobs[first : first + 4], strict=False):
            with column:
                holder = config.cache if knob in _CACHE_KNOBS else config.scheduler
                _pick(knob, choices, str(getattr(holder, knob)), locked)
    if answer is not None and not answer.ok:
        st.error(frame.plain(answer.message), icon=":material/block:")


def tenant_table(snapshot: EngineSnapshot) -> pd.DataFrame:
    """Weights and quotas of the tenants that are configured or have been seen; an empty cell is no limit."""
    config = snapshot.config.scheduler
    names = sorted({t.name for t in config.tenants} | {t.name for t in snapshot.tenants} | {"default"})
    rows = []
    for name in names:
        t = config.tenant(name)
        rows.append((name, t.weight, t.max_seqs, t.max_blocks, t.max_tokens_per_s))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(COLUMNS[1:], "float64"))


def tenants_of(table: pd.DataFrame) -> tuple[TenantConfig, ...]:
    """The edited table as settings.

    Raises:
        ConfigError: naming the tenant, the value found and the valid range.
    """
    found = []
    for row in table.itertuples(index=False):
        name = str(row[0] or "").strip()
        if not name or name == "nan":
            raise ConfigError("a tenant has no name; fill the first column or delete the row")
        weight, seats, blocks, rate = (None if value is None or math.isnan(value) else float(value) for value in row[1:])
        for what, value in (("seats", seats), ("blocks", blocks)):
            if value is not None and value != int(value):
                raise ConfigError(f"{what} of tenant {name} is {value:g}; give a whole number, or leave it empty for no limit")
        found.append(
            TenantConfig(
                name=name,
                weight=1.0 if weight is None else weight,
                max_seqs=None if seats is None else int(seats),
                max_blocks=None if blocks is None else int(blocks),
                max_tokens_per_s=rate,
            )
        )
    return tuple(found)


def _apply(access: Access, table: pd.DataFrame) -> Answer:
    try:
        return access.set_scheduler(tenants=tenants_of(table))
    except ConfigError as error:
        return Answer(False, str(error))


@st.fragment
def tenants() -> None:
    """The editable table of tenants."""
    access = engine()
    table = tenant_table(access.latest())
    with st.form("tenants", border=False):
        edited = st.data_editor(
            table,
            num_rows="dynamic",
            hide_index=True,
            key="tenant_editor",
            placeholder="no limit",
            column_config={
                "tenant": st.column_config.TextColumn("Tenant", required=True),
                "weight": st.column_config.NumberColumn("Weight", min_value=0.001, default=1.0, help="Share under wfq"),
                "seats": st.column_config.NumberColumn("max_seqs", help="Most running requests; empty is no limit"),
                "blocks": st.column_config.NumberColumn("max_blocks", help="Most live KV blocks; empty is no limit"),
                "tokens/s": st.column_config.NumberColumn("max_tokens/s", help="Prompt and output tokens; empty is no limit"),
            },
        )
        sent = st.form_submit_button("Apply at the next step", disabled=not access.is_controller)
    if sent:
        answer = _apply(access, edited)
        if answer.ok:
            st.success("Weights and quotas hold from the next step on.")
        else:
            st.error(frame.plain(answer.message), icon=":material/block:")
