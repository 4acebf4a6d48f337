"""Any chart of the program as a figure for print: light ground, own font, readable in one column, captioned.

    page's specification + data --colours of print, no selections, sizes in cm--> specification with everything inside

A figure is drawn at the size at which it is printed (96 px = 2.54 cm), and no text is smaller than MIN_TEXT_PT there.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from core.charts import style
from core.report.caption import Caption
from core.report.text import FONTS, wrap

Spec = dict[str, Any]
Data = Any
"""A pandas DataFrame, a pyarrow Table, or None."""

WIDTHS_CM = {"one column, 8.5 cm": 8.5, "two columns, 17.8 cm": 17.8}
PX_PER_CM = 96 / 2.54
PX_PER_PT = 96 / 72
MIN_TEXT_PT = 7.0
MIN_TEXT_PX = MIN_TEXT_PT * PX_PER_PT
_SMALL_PX = 12
"""Text of the screen up to this size has the smallest size on paper: there is less room, and it is read closer."""
_AROUND_PX = 62  # axis, legend and padding beside the plot itself
_LINE_PX = 12.5
_QUIET = {"#343E49": "#DCE1E7", "#46515D": "#CBD2DA", "#2A323B": "#DDE2E8"}
_TONES = ("ground", "panel", "line", "grid", "text", "muted", "decode", "waiting")


def colours_from(theme: style.Theme) -> dict[str, str]:
    """Tones of a theme -> tones of print."""
    if theme is style.PRINT:
        return {}
    found = {getattr(theme, tone): getattr(style.PRINT, tone) for tone in _TONES}
    return found | _QUIET if theme is style.DARK else found


_DROPPED = ("params", "usermeta", "tooltip")


def repainted(value: Any, colours: dict[str, str]) -> Any:
    """A specification in the colours of print, without selections and tooltips, its small text made legible."""
    if isinstance(value, dict):
        kept = {k: repainted(v, colours) for k, v in value.items() if k not in _DROPPED}
        size = kept.get("fontSize")
        if isinstance(size, (int, float)) and size < _SMALL_PX:
            kept["fontSize"] = MIN_TEXT_PX
        if "gradientLength" in kept:
            kept |= {"orient": "bottom", "gradientLength": 36}  # beside the legends at the top it would not fit one column
        return kept
    if isinstance(value, list):
        return [repainted(item, colours) for item in value]
    return colours.get(value, value) if isinstance(value, str) else value


def rows_of(data: Data) -> list[dict[str, Any]]:
    """Rows as plain values; what is not a number is null."""
    table = data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def with_data(spec: Spec, data: Data) -> Spec:
    """A specification with its data as plain rows inside, whether they came beside it or as named data sets."""
    named = spec.get("datasets", {})
    inside: Spec = {**spec, "datasets": {name: rows_of(part) for name, part in named.items()}} if named else dict(spec)
    if data is not None:
        inside["data"] = {"values": rows_of(data)}
    return inside


def _sets(spec: Spec) -> Spec:
    """The named data sets of a specification; rows are never repainted."""
    return {"datasets": spec["datasets"]} if "datasets" in spec else {}


def print_config(width_px: float) -> Spec:
    """The `config` of a figure for print."""
    config = style.vega_config(style.PRINT)
    fonts = {"labelFont": FONTS, "titleFont": FONTS, "labelFontSize": MIN_TEXT_PX, "titleFontSize": MIN_TEXT_PX}
    narrow = width_px < 480
    config["font"] = FONTS
    config["axis"] = {**config["axis"], **fonts, "titleColor": style.PRINT.text, "labelColor": style.PRINT.text}
    config["legend"] = {
        **config["legend"], **fonts, "columns": 4 if narrow else 7, "columnPadding": 8, "symbolSize": 50,
        "labelColor": style.PRINT.text, "titleColor": style.PRINT.text,
    }  # fmt: skip
    config["text"] = {**config["text"], "font": FONTS, "fontSize": MIN_TEXT_PX}
    config["title"] = {
        **config["title"], "font": FONTS, "subtitleFont": FONTS, "fontSize": MIN_TEXT_PX, "subtitleFontSize": MIN_TEXT_PX,
        "subtitleColor": style.PRINT.text, "offset": 6, "subtitlePadding": 2, "frame": "bounds", "lineHeight": _LINE_PX,
        "subtitleLineHeight": _LINE_PX, "orient": "bottom",
    }  # fmt: skip
    return config


def print_spec(
    spec: Spec,
    data: Data,
    caption: Caption,
    *,
    theme: style.Theme = style.PRINT,
    width_cm: float = 8.5,
    height_cm: float | None = None,
) -> Spec:
    """The figure, `width_cm` wide over all, complete in itself.

    Args:
        spec: a chart's specification, made for `theme`.
        data: its data; None where they are in its `datasets`.
        height_cm: of the plot without axes, legend and caption; None keeps a proportion that suits the width, or the
            specification's own height if it says that it is tall.
    """
    width_px = width_cm * PX_PER_CM
    room = width_px - 14
    head = wrap(caption.title, MIN_TEXT_PX, room, bold=True)
    lines = [*(wrap(caption.how, MIN_TEXT_PX, room) if caption.how else ()), *wrap(caption.text(), MIN_TEXT_PX, room)]
    own = float(spec.get("height", 200))
    most = own if spec.get("usermeta", {}).get("tall") else max(0.5 * width_px, 170.0)
    plot_px = height_cm * PX_PER_CM if height_cm is not None else min(own, most)
    figure: Spec = with_data(
        repainted({k: v for k, v in spec.items() if k != "datasets"}, colours_from(theme)) | _sets(spec), data
    )
    figure |= {
        "width": round(width_px),
        "height": round(plot_px + _AROUND_PX + _LINE_PX * (len(head) + len(lines))),
        "autosize": {"type": "fit", "contains": "padding"},
        "title": {"text": head, "subtitle": lines},
        "config": print_config(width_px),
    }
    return figure
