"""The "save as" control of a figure: PNG at three sizes, SVG, PDF, and its data, made when a button is pressed.

    figure ............................ [v]     ->   one column | two columns    PNG 1x 2x 3x   SVG   PDF   CSV   Parquet

The element asks, the next tick makes the file from the very data that it draws, and the element hands it to the browser.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import style
from core.environment import processor
from core.errors import BatchscopeError
from core.load_spec import LoadSpec
from core.report.caption import Caption, RunFacts, facts_of_snapshot
from core.report.file_kinds import FORMATS, MIME, file_name
from core.report.print_spec import WIDTHS_CM, print_spec
from pages.parts import engine_access
from pages.parts.element import LiveElement, trigger

TABLE_FORMATS, TABLE_LABELS = ("csv", "parquet"), ("CSV", "Parquet")
LABELS = ("PNG", "PNG 2x", "PNG 3x", "SVG", "PDF", "CSV", "Parquet")
Make = Callable[[], tuple[dict[str, Any], Any]]
_ASKED, _MADE = "save_as_asked", "save_as_made"
_element = LiveElement("save_as")


def content_of(fmt: str, spec: dict[str, Any], data: Any, caption: Caption, theme: style.Theme, width_cm: float) -> bytes:
    """The file of one format.

    Raises:
        ExportError: if the figure cannot be drawn.
    """
    from core.report.render import data_file, joined, picture  # the renderer is loaded with the first figure that is saved

    if fmt in ("csv", "parquet"):
        if data is None:
            named = spec.get("datasets") or {"data": spec.get("data", {}).get("values", [])}
            data = joined(named)
        return data_file(data, fmt)
    return picture(print_spec(spec, data, caption, theme=theme, width_cm=width_cm), fmt)


def _on_save(key: str) -> None:
    asked = trigger(key, "save")
    if isinstance(asked, dict):
        st.session_state.setdefault(_ASKED, {})[key] = asked


def _on_saved(key: str) -> None:
    st.session_state.get(_MADE, {}).pop(key, None)


def _make(key: str, asked: dict[str, Any], formats: Sequence[str], content_as: Callable[[str, float], bytes]) -> dict[str, Any]:
    """What the element gets: the file, or why there is none; `content_as(format, width in cm)` makes it."""
    answer: dict[str, Any] = {"id": str(asked.get("id"))}
    number, width = asked.get("format"), asked.get("width")
    widths = list(WIDTHS_CM.values())
    if not (isinstance(number, int) and 0 <= number < len(formats) and isinstance(width, int) and 0 <= width < len(widths)):
        return answer | {"error": "there is no such format or width"}
    fmt = formats[number]
    try:
        content = content_as(fmt, widths[width])
    except BatchscopeError as error:
        return answer | {"error": str(error)}
    kind = MIME[fmt.partition("@")[0]]
    return answer | {"name": file_name(key, fmt), "mime": kind, "content": base64.b64encode(content).decode()}


def _processor() -> str:
    """The processor of the run that is shown."""
    view = engine_access.replay()
    if view is None:
        return processor()
    return str(view.bundle.environment.get("processor", "")) if view.bundle is not None else ""


def facts_under(load: LoadSpec) -> RunFacts:
    """The facts of a run of this engine under a load of its own."""
    live = facts_of_snapshot(engine_access.engine().latest(), _processor())
    return replace(live, load=load.label, seed=load.seed)


def control(
    key: str, make: Make, *, title: str, span: str, how: str = "", theme: style.Theme, facts: RunFacts | None = None
) -> None:
    """Draw the control of a figure, at the upper right corner of what is drawn next.

    Args:
        make: gives specification and data; called only when a file is asked for.
        facts: of the run that is drawn; None is the one of the live engine or the replay.
    """

    def content_as(fmt: str, width_cm: float) -> bytes:
        told = facts or facts_of_snapshot(engine_access.engine().latest(), _processor())
        return content_of(fmt, *make(), Caption(title, span, told, how), theme, width_cm)

    _draw(key, {"widths": list(WIDTHS_CM), "formats": LABELS}, FORMATS, content_as)


def table(key: str, make: Callable[[], pd.DataFrame]) -> None:
    """Draw the control of a table of words or of tiles, at the upper right corner of what is drawn next: CSV and Parquet.

    Args:
        make: gives the rows; called only when a file is asked for.
    """

    def content_as(fmt: str, _width_cm: float) -> bytes:
        from core.report.render import data_file

        return data_file(make(), fmt)

    _draw(key, {"widths": [], "formats": TABLE_LABELS, "what": "table"}, TABLE_FORMATS, content_as)


def _draw(key: str, shown: dict[str, Any], formats: Sequence[str], content_as: Callable[[str, float], bytes]) -> None:
    own = f"save_{key}"
    asked = st.session_state.get(_ASKED, {}).pop(own, None)
    made: dict[str, Any] = st.session_state.setdefault(_MADE, {})
    if asked is not None:
        made[own] = _make(key, asked, formats, content_as)
    with st.container(key=f"corner_{key}"):
        _element.draw(
            shown | {"file": made.get(own)},
            key=own,
            on_save_change=partial(_on_save, own),
            on_saved_change=partial(_on_saved, own),
        )
