"""Paired figures: each row a figure of two runs as two bars, their values, and the difference in words.

    Output      base ------------            412 tok/s
                new  -----------------       632 tok/s      +53 %
A bar is dashed where the value is predicted, filled where it was measured; a green or red word is better or worse.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, style
from core.charts.pairs import pair_frame, pair_spec
from pages.parts import frame

SAME = 0.005


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of two runs.

    Attributes:
        unit: "s", "%", or what follows the number.
        better: 1 if more is better, -1 if less is better, 0 if neither.
        mark: a third value, drawn as a tick on the first bar (what was measured).
    """

    label: str
    unit: str
    first: float | None
    second: float | None
    better: int = 0
    mark: float | None = None
    title: str = ""


def shown(value: float | None, unit: str) -> str:
    """A value with its unit."""
    if value is None:
        return formats.NONE
    if unit == "s":
        return formats.seconds(value)
    if unit == "%":
        return formats.percent(value)
    text = formats.figures(value)
    return f"{text}{formats.THIN}{unit}" if unit else text


def difference(first: float | None, second: float | None, unit: str) -> str:
    """The difference in words: times from a factor of two on, else percent; points of percent for shares."""
    if first is None or second is None:
        return formats.NONE
    if unit == "%":
        points = 100 * (second - first)
        return "=" if abs(points) < 0.5 else f"{points:+.0f}{formats.THIN}points"
    if first == 0 or second == 0:
        return "=" if first == second else f"{second - first:+.3g}"
    factor = second / first
    if abs(factor - 1) < SAME:
        return "="
    if factor >= 2:
        return f"×{formats.THIN}{formats.si(factor, digits=2)}"
    if 0 < factor <= 0.5:
        return f"÷{formats.THIN}{formats.si(1 / factor, digits=2)}"
    return f"{100 * (factor - 1):+.1f}{formats.THIN}%"


def _tone(pair: Pair) -> str:
    if not pair.better or pair.first is None or pair.second is None:
        return ""
    gain = (pair.second - pair.first) * pair.better
    least = SAME * abs(pair.first)
    return "bs-good" if gain > least else "bs-bad" if gain < -least else ""


def _row(pair: Pair, names: tuple[str, str]) -> str:
    values = [v for v in (pair.first, pair.second, pair.mark) if v is not None]
    top = 1.0 if pair.unit == "%" else max([abs(v) for v in values], default=0.0) or 1.0
    bars = []
    for kind, value in (("first", pair.first), ("second", pair.second)):
        share = 100 * min(abs(value) / top, 1.0) if value is not None else 0.0
        tick = f'<s style="left:{100 * pair.mark / top:.1f}%"></s>' if kind == "first" and pair.mark is not None else ""
        bars.append(f'<i class="{kind}"><b style="width:{share:.1f}%"></b>{tick}</i>')
    better = {1: "more is better", -1: "less is better", 0: ""}[pair.better]
    about = ", ".join(
        x
        for x in (pair.title, f"{names[0]} {shown(pair.first, pair.unit)}", f"{names[1]} {shown(pair.second, pair.unit)}", better)
        if x
    )
    first, second = html.escape(shown(pair.first, pair.unit)), html.escape(shown(pair.second, pair.unit))
    change = html.escape(difference(pair.first, pair.second, pair.unit))
    return (
        f'<tr title="{html.escape(about)}"><th scope="row">{html.escape(pair.label)}</th><td class="bars">{"".join(bars)}</td>'
        f'<td class="n"><u>{first}</u></td><td class="n">{second}</td><td class="d {_tone(pair)}">{change}</td></tr>'
    )


def pair_figure(
    pairs: Sequence[Pair], names: tuple[str, str], dashed: tuple[bool, bool], theme: style.Theme
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The rows as a chart for paper: specification and data."""
    rows = [(p.label, p.unit, n, v, shown(v, p.unit)) for p in pairs for n, v in zip(names, (p.first, p.second), strict=True)]
    data = pair_frame(rows)
    return pair_spec(theme, data["figure"].nunique(), names, dashed), data


def paired(pairs: Sequence[Pair], names: tuple[str, str], *, key: str, dashed: tuple[bool, bool] = (True, True)) -> None:
    """Draw the rows as a table that can be saved as a figure; a row without any value is left out."""
    frame.can_be_saved(key, lambda: pair_figure(pairs, names, dashed, frame.theme()))
    rows = "".join(_row(p, names) for p in pairs if p.first is not None or p.second is not None)
    kinds = " ".join(f"bs-dash-{n}" for n, is_dashed in zip(("first", "second"), dashed, strict=True) if is_dashed)
    st.html(
        f'<table class="bs-paired {kinds}"><thead><tr><th></th><th></th><th class="n">{html.escape(names[0])}</th>'
        f'<th class="n">{html.escape(names[1])}</th><th class="d">difference</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def stacked(parts: Sequence[tuple[str, float, str]], total: float, label: str, note: str) -> None:
    """One horizontal bar of parts: (name, amount, colour); amounts in bytes, names and sizes underneath."""
    pieces = "".join(
        f'<b style="width:{100 * amount / total:.2f}%;background:{colour}" title="{html.escape(name)}"></b>'
        for name, amount, colour in parts
    )
    keys = "".join(
        f'<span><b style="background:{colour}"></b>{html.escape(name)} {formats.decimal_bytes(amount)}</span>'
        for name, amount, colour in parts
    )
    st.html(
        f'<div class="bs-stack"><div><strong>{html.escape(label)}</strong><em>{html.escape(note)}</em></div>'
        f'<i role="img" aria-label="{html.escape(label)}">{pieces}</i><p>{keys}</p></div>'
    )
