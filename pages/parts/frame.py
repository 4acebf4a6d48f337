"""The frame that all pages share: heading, notices, figure heads, empty states, and the style sheet behind them.

status bar / question / one hero figure / details in tabs          settings in the sidebar
figure:  TITLE that says what it answers        steps 17 905 to 18 204 · measured
         ............................................................
         one line that says how to read it
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, style
from core.records import StepRecord
from core.report.caption import RunFacts
from core.snapshot import EngineSnapshot
from pages.parts import save_as

_HEAD = "figure_head"
_ABOUT = "figures_are_of"
ROWS = "rows"
"""Name of the data set of a figure that has only one."""
_SHEET = Path(__file__).resolve().parents[2] / "assets" / "page.css"


@lru_cache(maxsize=4)
def _style_tag(ground: style.Theme) -> str:
    tones = f":root {{ --bs-ground: {ground.ground}; --bs-panel: {ground.panel}; }}"
    return f"<style>\n{tones}\n{_SHEET.read_text('utf-8')}\n</style>"


def page_style() -> None:
    """The style sheet of the frame; once a page run.

    It travels with an (empty) piece of content: a sheet alone would be applied after the page it is for is seen.
    """
    with st.container(key="page_style"):
        st.html(_style_tag(theme()) + "<i hidden></i>")


def theme() -> style.Theme:
    """Tones of the ground that this browser shows."""
    return style.theme_of(st.context.theme.type)


def heading(question: str, about: str = "") -> None:
    """The page's question, and one line under it."""
    note = f"<p>{html.escape(about)}</p>" if about else ""
    st.html(f'<header class="bs-heading"><h1>{html.escape(question)}</h1>{note}</header>')


def notice(snapshot: EngineSnapshot) -> None:
    """What the person must know now: start-up, a failure, a fallback. Always one slot, mostly empty."""
    with st.container(key="notice"):
        if snapshot.state == "starting":
            st.info(f"Starting: {plain(snapshot.progress or 'loading the model')}", icon=":material/hourglass_top:")
        elif snapshot.state in ("failed", "stopped"):
            st.error(plain(snapshot.message or "the engine has stopped"), icon=":material/error:")
        elif snapshot.message:
            st.warning(plain(snapshot.message), icon=":material/info:")
        elif snapshot.info and snapshot.info.fallback:
            st.warning(plain(f"A synthetic model stands in: {snapshot.info.fallback}"), icon=":material/science:")


def plain(text: str) -> str:
    """Text for an element that reads Markdown, with everything that Markdown would read taken as text."""
    return "".join("\\" + c if c in "\\`*_{}[]()#+-.!|<>~$:" else c for c in text)


def span_of(history: Sequence[StepRecord]) -> str:
    """ "steps 17 905 to 18 204 · measured", for the head of a figure."""
    if not history:
        return "no steps yet"
    kinds = sorted({record.kind for record in history})
    return f"{formats.step_range(history[0].step, history[-1].step)} · {' and '.join(kinds)}"


def kind_of(snapshot: EngineSnapshot) -> str:
    """measured, predicted or replayed."""
    return snapshot.info.kind if snapshot.info else "measured"


def figure_head(title: str, aside: str = "", *, how: str = "", on_screen: str = "") -> None:
    """Title of a figure, its range and kind at the right, and how to read it underneath.

    Args:
        title: what the figure answers.
        aside: `span_of(history)` or another range with the word measured, predicted or replayed.
        how: one line that says how to read it; a saved figure says it as well.
        on_screen: what else a pointer can do with it here; not said where there is none.
    """
    words = " ".join([*([html.escape(how)] if how else []), *([f"<i>{html.escape(on_screen)}</i>"] if on_screen else [])])
    read = f"<p>{words}</p>" if words else ""
    st.session_state[_HEAD] = (title, aside, how)
    st.html(f'<div class="bs-figure"><div><h2>{html.escape(title)}</h2><span>{html.escape(aside)}</span></div>{read}</div>')


def legend(items: Sequence[tuple[str, str]]) -> None:
    """Names with their colours, for several figures that share them."""
    chips = "".join(f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in items)
    st.html(f'<div class="bs-legend">{chips}</div>')


def scale_params(spec: dict[str, Any]) -> list[str]:
    """Names of the parameters that zoom and pan a specification (interval selections bound to its scales)."""
    own = [p["name"] for p in spec.get("params", ()) if p.get("bind") == "scales"]
    return own + [name for layer in spec.get("layer", ()) for name in scale_params(layer)]


def figures_are_of(facts: RunFacts | None) -> None:
    """What the captions of the figures drawn from now on say of their run; None: the engine that the page shows."""
    st.session_state[_ABOUT] = facts


def can_be_saved(key: str, make: save_as.Make, title: str = "") -> None:
    """Let the figure that is drawn next be saved, under the latest head.

    Args:
        make: gives its specification in this page's theme, and its data.
        title: where no head was drawn before.
    """
    title, span, how = st.session_state.get(_HEAD, (title, "", ""))
    save_as.control(key, make, title=title, span=span, how=how, theme=theme(), facts=st.session_state.get(_ABOUT))


def chart(data: Any, spec: dict[str, Any], *, key: str, alt: str, picks: Sequence[str] = ()) -> dict[str, Any]:
    """A Vega-Lite chart whose specification is constant, so that zoom and pan survive every tick.

    Streamlit forgets a zoom with each change of the data, except where the selection is one that the script reads; so
    it is registered as such. Nothing is done with it. Data travel as a named data set, which is in the chart when it is
    first drawn; others come after it, and until then its axes would have no extent.

    Args:
        data: a DataFrame of at most 2,000 rows.
        spec: the same object at every tick (build it once, for each theme).
        alt: what the figure shows, for those who do not see it.
        picks: names of point selections of the specification whose picks the script reads.

    Returns:
        What is picked: parameter -> rows of the fields that it selects by.
    """
    can_be_saved(key, lambda: (spec, data), alt)
    config = {part: value for part, value in spec.get("config", {}).items() if part not in ("title", "padding")}  # not used here
    drawn = {"padding": style.PADDING, **spec, "config": config}
    if data is not None:
        drawn |= {"data": {"name": ROWS}, "datasets": {ROWS: data}}
    selections = [*scale_params(spec), *picks]
    if not selections:
        st.vega_lite_chart(None, drawn, key=key, theme=None, width="stretch", alt=alt)
        return {}
    found: Any = st.vega_lite_chart(
        None, drawn, key=key, theme=None, width="stretch", alt=alt, on_select="rerun", selection_mode=selections
    )
    return {name: rows for name in picks if (rows := found.get("selection", {}).get(name))}


def empty(
    what: str, action: str | None = None, on_click: Callable[[], None] | None = None, *, key: str, height: int | str = "content"
) -> None:
    """An empty state: what is missing, and the button that fills it."""
    with st.container(key=f"empty_{key}", height=height, border=True, horizontal_alignment="center", vertical_alignment="center"):
        st.text(what)
        if action:
            st.button(action, key=f"fill_{key}", on_click=on_click)


def numbered(items: Sequence[tuple[str, str]]) -> None:
    """Short statements with a line of figures under each."""
    rows = "".join(f"<li><b>{html.escape(head)}</b><span>{html.escape(line)}</span></li>" for head, line in items)
    st.html(f'<ol class="bs-numbered">{rows}</ol>')


def strip(items: Sequence[tuple[str, str]]) -> None:
    """Numbered stations side by side: a title and a line each."""
    cells = "".join(f"<li><b>{html.escape(head)}</b><span>{html.escape(line)}</span></li>" for head, line in items)
    st.html(f'<ol class="bs-strip">{cells}</ol>')


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, key: str, numeric: Sequence[int] = (), quiet: Sequence[int] = ()
) -> None:
    """A table of words that wraps in its last column, scrolls below 24 rem, and can be saved.

    Args:
        key: names the file.
        numeric: columns whose cells stand at the right.
        quiet: rows that matter less.
    """

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = ['class="n"' if k in numeric else "" for k in range(len(values))]
        return "".join(f"<{tag} {kind}>{html.escape(v)}</{tag}>" for kind, v in zip(kinds, values, strict=True))

    save_as.table(key, lambda: pd.DataFrame([list(row) for row in rows], columns=list(head)))
    body = "".join(f'<tr class="{"quiet" if k in quiet else ""}">{cells("td", row)}</tr>' for k, row in enumerate(rows))
    st.html(f'<div class="bs-table"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>')


def points(head: str, lines: Sequence[str]) -> None:
    """A heading with short statements under it."""
    rows = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    st.html(f'<div class="bs-points"><b>{html.escape(head)}</b><ul>{rows}</ul></div>')


def footer(text: str = "") -> None:
    """Last line of a page: units and conventions."""
    words = text or "GB = 10⁹ bytes, GiB = 2³⁰ bytes. A multiply-add is two operations. – means no value, not zero."
    st.html(f'<footer class="bs-footer">{html.escape(words)}</footer>')
