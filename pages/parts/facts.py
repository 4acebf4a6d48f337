"""A row of figures without boxes: label, value, and what the value is a share or a part of.

LIVE BLOCKS      CACHED, REUSABLE            FREE
812              171                         41
79.3 % of pool   no owner, evicted first     of 1 024 blocks
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

from core.charts import formats
from core.snapshot import EngineSnapshot

_GRID = "display:grid;grid-template-columns:repeat(auto-fit,minmax({width}px,1fr));gap:0.6rem 1.25rem;margin:0"
_LABEL = "font-size:0.75rem;opacity:0.7;margin:0"
_VALUE = "font-size:1.2rem;font-weight:600;line-height:1.3;margin:0;font-variant-numeric:tabular-nums;white-space:nowrap"
_NOTE = "font-size:0.75rem;opacity:0.65;margin:0;line-height:1.3"


def facts(cells: Sequence[tuple[str, str, str]], *, width: int = 150) -> None:
    """Draw (label, value, note) side by side, as many in a row as have room.

    Args:
        width: least width of one, pixels.
    """
    items = "".join(
        f'<div><div style="{_LABEL}">{html.escape(label)}</div>'
        f'<div style="{_VALUE}">{html.escape(value)}</div><div style="{_NOTE}">{html.escape(note)}</div></div>'
        for label, value, note in cells
    )
    st.html(f'<div style="{_GRID.format(width=width)}">{items}</div>')


def moment(snapshot: EngineSnapshot) -> str:
    """ "step 18 204 · measured", for the head of a figure of one step."""
    if snapshot.step_record is None:
        return "no steps yet"
    return f"step {formats.count(snapshot.step)} · {snapshot.step_record.kind}"
