"""One visual language: what each colour, line and letter means, and the frame that every chart shares.

Categories are Okabe-Ito, amounts are viridis or cividis, and no colour stands alone: a shape, a letter or a
hatch repeats it. Blue and yellow need another tone on a dark ground than on paper, so a colour is asked for
by meaning and theme: `colour("decode", DARK)`.

    measured  solid      predicted  dashed      replayed  dotted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PREFILL = "#E69F00"
DECODE = "#0072B2"
DECODE_ON_DARK = "#56B4E9"
WAITING = "#F0E442"
PREEMPTED = "#D55E00"
USEFUL = "#009E73"
SHARED = "#CC79A7"
IDLE = "#8A939E"

VIRIDIS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
CIVIDIS = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip

_VIRIDIS = {"scheme": "viridis"}

THIN_GROUPS = "replace(format(datum.value, ',~r'), /,/g, '\u202f')"
"""Vega expression for axis labels: digits grouped by thin spaces, as everywhere else."""

ZOOM: dict[str, Any] = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
}
"""Parameter of every figure over steps or time; a plain wheel goes on scrolling the page."""

HOW_TO_ZOOM = "Drag pans, shift + wheel zooms, double click resets."

PADDING = {"left": 4, "right": 8, "top": 4, "bottom": 4}
"""Round a figure, px; on a page it must stand in the specification itself, or 20 px are left under every figure."""

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
MONO = "'JetBrains Mono', 'SF Mono', Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Theme:
    """Tones of one ground: `line` for axes and borders, `grid` for what is barely there."""

    name: str
    ground: str
    panel: str
    line: str
    grid: str
    text: str
    muted: str
    decode: str
    waiting: str


DARK = Theme("dark", "#0E1217", "#151B22", "#303944", "#1F262E", "#DCE1E7", "#95A0AC", DECODE_ON_DARK, WAITING)
LIGHT = Theme("light", "#FFFFFF", "#F4F6F8", "#C9D0D8", "#E9ECF0", "#1A2129", "#59646F", DECODE, "#B8A900")
PRINT = Theme("print", "#FFFFFF", "#FFFFFF", "#444444", "#DDDDDD", "#000000", "#444444", DECODE, "#B8A900")
THEMES = {theme.name: theme for theme in (DARK, LIGHT, PRINT)}

LETTERS = {
    "prefill": "P",
    "decode": "D",
    "waiting": "W",
    "preempted": "X",
    "failed": "F",
    "finished": "E",
    "shared": "S",
    "idle": "-",
}
MARK_SHAPES = {
    "admitted": "triangle-up",
    "preempted": "triangle-down",
    "finished": "circle",
    "cancelled": "cross",
}

LINE_DASH: dict[str, list[float]] = {"measured": [1, 0], "predicted": [6, 4], "replayed": [1.5, 3]}
KINDS = tuple(LINE_DASH)


def theme_of(name: str | None) -> Theme:
    """The theme of that name; dark if the name is None or not known (a browser that has not said)."""
    return THEMES.get(name or "dark", DARK)


def colour(meaning: str, theme: Theme = DARK) -> str:
    """Colour of a meaning on a ground.

    Raises:
        KeyError: for a meaning without a colour.
    """
    by_theme = {"decode": theme.decode, "waiting": theme.waiting}
    fixed = {
        "prefill": PREFILL,
        "preempted": PREEMPTED,
        "failed": PREEMPTED,
        "finished": USEFUL,
        "useful": USEFUL,
        "shared": SHARED,
        "cached": SHARED,
        "idle": IDLE,
        "padding": IDLE,
        "wasted": IDLE,
    }
    return by_theme[meaning] if meaning in by_theme else fixed[meaning]


def hue_colour(hue: int, theme: Theme = DARK) -> str:
    """The stable colour of a request as a CSS colour; even lightness, so no request shouts."""
    lightness, chroma = ("72%", "0.12") if theme.name == "dark" else ("58%", "0.13")
    return f"oklch({lightness} {chroma} {hue % 360})"


def seldom(test: str, by: str = "step") -> list[dict[str, Any]]:
    """Vega-Lite transform that keeps the rows of a test and the row at the left edge, which is there to give the axis an extent.

    A layer without a row has none, of which a browser complains. Give the mark `seldom_size` for its size, so that the
    row at the edge shows only where the test holds.
    """
    edge = {"joinaggregate": [{"op": "min", "field": by, "as": "edge"}]}
    return [edge, {"filter": f"{test} || datum.{by} === datum.edge"}]


def seldom_size(test: str, size: float) -> dict[str, Any]:
    """The channel `size` that goes with `seldom`."""
    return {"condition": {"test": test, "value": size}, "value": 0}


def phase_channels(phases: Sequence[str], theme: Theme = DARK) -> dict[str, Any]:
    """Vega-Lite channels over the field `phase` of bars: filled, but for what was preempted, which is hollow and dashed.

    Prefill and preempted are neighbours in hue; the outline tells them apart without it.
    """
    fills = {"queue": "#46515D" if theme.name == "dark" else "#CBD2DA", "prefill": PREFILL, "decode": theme.decode}

    def over(full: Any, hollow: Any) -> dict[str, Any]:
        shown = [hollow if phase == "preempted" else full for phase in phases]
        domain = {"domain": list(phases), "range": shown}
        return {"field": "phase", "type": "nominal", "title": None, "sort": list(phases), "scale": domain}

    colours = over("", "")
    colours["scale"]["range"] = [fills.get(phase, f"{PREEMPTED}30") for phase in phases]
    return {
        "color": colours,
        "stroke": over(theme.ground, PREEMPTED),
        "strokeWidth": {"value": 1.2},
        "opacity": {"value": 1},
        "strokeDash": over([1, 0], [3, 2]),
    }


def kind_scale() -> dict[str, Any]:
    """Vega-Lite scale of the strokeDash channel over measured / predicted / replayed."""
    return {"domain": list(KINDS), "range": [LINE_DASH[kind] for kind in KINDS]}


def vega_config(theme: Theme) -> dict[str, Any]:
    """The `config` block of every Vega-Lite specification: thin lines, quiet axes, no frame, transparent ground."""
    label = {"labelColor": theme.muted, "titleColor": theme.muted}
    return {
        "background": theme.ground if theme.name == "print" else "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "padding": PADDING,
        "axis": {
            **label,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 6,
            "labelPadding": 4,
            "domainColor": theme.line,
            "tickColor": theme.line,
            "tickSize": 4,
            "gridColor": theme.grid,
            "gridWidth": 1,
            "domainWidth": 1,
            "tickWidth": 1,
            "labelFlush": False,
            "labelOverlap": True,
        },
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            **label,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "symbolSize": 70,
            "orient": "top",
            "direction": "horizontal",
            "offset": 2,
            "columnPadding": 14,
            "rowPadding": 2,
            "titleOrient": "left",
        },
        "title": {
            "color": theme.text,
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "offset": 8,
            "subtitleColor": theme.muted,
            "subtitleFontSize": 11,
            "subtitlePadding": 4,
        },
        "text": {"color": theme.text, "fontSize": 11},
        "line": {"strokeWidth": 1.4, "color": theme.decode},
        "rule": {"strokeWidth": 1, "color": theme.muted},
        "point": {"strokeWidth": 1},
        "bar": {"discreteBandSize": {"band": 0.8}},
        "range": {"ramp": _VIRIDIS, "heatmap": _VIRIDIS, "ordinal": _VIRIDIS},
    }
