"""Widgets of the What-if form: each knob with the live value as a ghost mark.

max_num_seqs   [ 64 ]         o live 32 ----- * 64         a value that is the live one leaves the address alone
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from core.config import AdmissionPolicy, BatchPolicy, EvictionPolicy, PreemptionMode, QueuePolicy, VictimPolicy
from pages.parts.knobs import Knob
from pages.parts.limit import limit
from pages.parts.whatif_keys import PREFIX, field, fresh

_ENUMS = {
    "batch_policy": BatchPolicy,
    "queue_policy": QueuePolicy,
    "admission_policy": AdmissionPolicy,
    "preemption_mode": PreemptionMode,
    "victim_policy": VictimPolicy,
    "eviction_policy": EvictionPolicy,
}
_RANGES = {
    "max_num_seqs": (1, 1024),
    "max_num_batched_tokens": (16, 16384),
    "long_prefill_token_threshold": (1, 16384),
    "block_size": (1, 256),
    "num_blocks": (16, 1_000_000),
}


def _place(value: float, low: float, high: float) -> float:
    """Where a value lies on a logarithmic track, percent."""
    span = math.log(max(high / low, 1.001))
    return 100.0 * min(max(math.log(max(value, low) / low) / span, 0.0), 1.0)


def ghost(live: Any, now: Any, bounds: tuple[float, float] | None = None) -> None:
    """The live value under a knob: a hollow mark on a track for numbers, a word for the rest; filled is the choice."""
    words = "on" if live is True else "off" if live is False else str(live)
    if live == now:
        st.html(f'<div class="bs-ghost">as live: {html.escape(words)}</div>')
        return
    track = ""
    if bounds is not None:
        low, high = min(bounds[0], live or 1, now or 1), max(bounds[1], live or 1, now or 1)
        at = [_place(float(v), max(low, 1e-9), high) for v in (live, now)]
        track = f'<i style="--live:{at[0]:.1f}%;--now:{at[1]:.1f}%"><s></s><b></b></i>'
    st.html(f'<div class="bs-ghost bs-moved">{track}<span>live {html.escape(words)}</span></div>')


def number(name: str, label: str, live: int, *, step: int = 1, low: int = 0, help_text: str = "") -> int:
    """A whole number with its ghost."""
    value = field(PREFIX + name, label, int(live), min_value=low, step=step, help=help_text or None)
    ghost(live, value, _RANGES.get(name, (1, 1e6)))
    return value


def choice(name: str, label: str, live: str, options: Sequence[str], help_text: str = "") -> str:
    """One of a few words with its ghost."""
    known = list(dict.fromkeys([*options]))
    value = st.selectbox(
        label,
        known,
        index=known.index(fresh(PREFIX + name, live if live in known else known[0])),
        key=PREFIX + name,
        bind="query-params",
        help=help_text or None,
    )
    ghost(live, value)
    return str(value)


def switch(name: str, label: str, live: bool, help_text: str) -> bool:
    value = st.toggle(label, value=fresh(PREFIX + name, live), key=PREFIX + name, bind="query-params", help=help_text)
    ghost(live, value)
    return bool(value)


def knob_of(knob: Knob, live: Any) -> Any:
    """One knob of the sidebar's table as a what-if knob."""
    if knob.choices is not None:
        return _ENUMS[knob.name](choice(knob.name, knob.label, str(live), [str(c) for c in knob.choices], knob.help))
    if isinstance(live, bool):
        return switch(knob.name, knob.label, live, knob.help)
    if isinstance(live, float):
        value = field(PREFIX + knob.name, knob.label, live, min_value=0.0, step=float(knob.step), help=knob.help)
        ghost(live, value)
        return value
    if knob.off:
        chosen = limit(knob, live, PREFIX + knob.name, bind="query-params")
        ghost(*[knob.off if value is None else value for value in (live, chosen)])
        return chosen
    return number(knob.name, knob.label, int(live), step=int(knob.step), help_text=knob.help)
