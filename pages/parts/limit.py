"""A number that may be left out: an empty field is no limit.

Streamlit lets a field be emptied only if it began empty, so the value in force is put into its state instead.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.parts.knobs import Knob


def limit(knob: Knob, value: int | None, key: str, **more: Any) -> int | None:
    """Draw the field; `value` stands in it at first, unless the address says otherwise."""
    if key not in st.session_state and key not in st.query_params:
        st.session_state[key] = value
    shown = st.number_input(
        knob.label, value=None, min_value=0, step=int(knob.step), key=key, placeholder=knob.off, **{"help": knob.help, **more}
    )
    return None if shown is None else int(shown)
