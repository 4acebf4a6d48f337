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


def facts(cells: Sequence[tuple[str, str, str]], *, width: int = 150) -> None:
    """Draw (label, value, note) side by side, as many in a row as have room.

    Args:
        width: least width of one, pixels.
    """
    items = "".join(
        f"<div><i>{html.escape(label)}</i><b>{html.escape(value)}</b><span>{html.escape(note)}</span></div>"
        for label, value, note in cells
    )
    st.html(f'<div class="bs-facts" style="--w:{width}px">{items}</div>')


def moment(snapshot: EngineSnapshot) -> str:
    """ "step 18 204 · measured", for the head of a figure of one step."""
    if snapshot.step_record is None:
        return "no steps yet"
    return f"step {formats.count(snapshot.step)} · {snapshot.step_record.kind}"
