"""The widgets of the What-if form by key: forgetting them all, so that each stands at its live value again.

    reset -> state and address forget "w_*" -> each widget is told its own default once, by `fresh`

Without being told, a browser keeps the value that it shows and reports it again with the next run.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import streamlit as st

PREFIX = "w_"
_TOLD_ANEW = "whatif_told_anew"
_STOOD = "whatif_defaults"
Value = TypeVar("Value")


def forget() -> None:
    """Back to the live values: forget every widget of the form, and the address with it."""
    keys = [str(k) for k in st.session_state if str(k).startswith(PREFIX)]
    for key in keys:
        del st.session_state[key]
    for key in [k for k in st.query_params if k.startswith(PREFIX)]:
        del st.query_params[key]
    told: set[str] = st.session_state.setdefault(_TOLD_ANEW, set())
    told.update(keys)


def say(key: str, value: Any) -> None:
    """Set a widget of the form."""
    told: set[str] = st.session_state.setdefault(_TOLD_ANEW, set())
    told.discard(key)
    st.session_state[key] = value


def fresh(key: str, default: Value) -> Value:
    """The default of a widget that is about to be drawn; after `forget` the browser is told it as well."""
    told: set[str] = st.session_state.get(_TOLD_ANEW, set())
    if key in told:
        told.discard(key)
        st.session_state[key] = default
    return default


@overload
def field(key: str, label: str, default: int, **options: Any) -> int: ...
@overload
def field(key: str, label: str, default: float, **options: Any) -> float: ...
def field(key: str, label: str, default: float, **options: Any) -> float:
    """A number of the form: at its default at first, in the address once it is another; `options` are the widget's own.

    Where the live value has moved (lengths are observed anew) a field that nobody has turned moves with it.
    """
    stood: dict[str, float] = st.session_state.setdefault(_STOOD, {})
    before = stood.get(key)
    if before is not None and before != default and st.session_state.get(key) == before:
        st.session_state[key] = default
    stood[key] = default
    value = st.number_input(label, value=fresh(key, default), key=key, bind="query-params", **options)
    return default if value is None else type(default)(value)
