"""The block map as a figure for print: every physical block of one step as a cell, filled as far as it is used.

+--+--+--+--+
|##|##|# |//|      height of the colour = share of the block's slots in use, colour = live, cached or free
+--+--+--+--+
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from core.block_view import columns
from core.charts import style
from core.charts.style import Theme
from core.snapshot import BlockMapView

STATES = ("live", "cached", "free")
MOST_COLUMNS = 64
MOST_ON_PAPER = 16_384


COLOURS = ("state", "owner", "age", "fill", "sharing")
"""What the colour of a cell can stand for, as on the page."""


def columns_of(num_blocks: int) -> int:
    """Cells in a row: at most 64, and about four times as wide as high for a small pool."""
    return min(MOST_COLUMNS, max(math.ceil(2 * math.sqrt(num_blocks)), 1))


def block_frame(view: BlockMapView) -> pd.DataFrame:
    """Columns block, column, row, top (where the filled part begins), state, tokens, refs, owner, age (steps), fill."""
    c = columns(view)
    wide = columns_of(view.num_blocks)
    blocks = np.arange(view.num_blocks)
    state = np.where(c.live, "live", np.where(c.cached, "cached", "free"))
    fill = np.where(state == "free", 0.0, np.frombuffer(view.fill, np.uint8) / 255.0)
    names = np.array(["", *view.owners], dtype=object)
    return pd.DataFrame(
        {
            "block": blocks,
            "column": blocks % wide,
            "row": blocks // wide,
            "top": blocks // wide + 0.92 * (1.0 - fill),
            "state": state,
            "tokens": np.rint(fill * view.block_size).astype(int),
            "refs": c.refs,
            "owner": names[c.owner],
            "age": c.last_use,
            "fill": np.round(fill, 3),
        }
    )


def _linear(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


def hue_hex(hue: float, lightness: float = 0.58, chroma: float = 0.13) -> str:
    """The hue of a request on a light ground as red, green and blue (Oklch to sRGB), for files that know no other."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l3, m3, s3 = (
        (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3,
        (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3,
        (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3,
    )
    rgb = (
        4.0767416621 * l3 - 3.3077115913 * m3 + 0.2309699292 * s3,
        -1.2684380046 * l3 + 2.6097574011 * m3 - 0.3413193965 * s3,
        -0.0041960863 * l3 - 0.7034186147 * m3 + 1.7076147010 * s3,
    )
    return "#" + "".join(f"{round(255 * min(max(_linear(max(c, 0.0)), 0.0), 1.0)):02X}" for c in rgb)


def owner_colours(frame: pd.DataFrame, hues: Mapping[str, int]) -> pd.DataFrame:
    """The frame with a column `colour`: the hue of each cell's owner, grey where nobody holds it."""
    known = {owner: hue_hex(hues[owner]) if owner in hues else style.IDLE for owner in frame["owner"].unique()}
    return frame.assign(colour=frame["owner"].map(known))


def _colour(theme: Theme, by: str) -> dict[str, Any]:
    """The colour channel for one meaning."""
    if by == "owner":
        return {"field": "colour", "type": "nominal", "scale": None}
    if by == "state":
        tones = [style.colour("useful", theme), style.colour("cached", theme), theme.grid]
        return {"field": "state", "type": "nominal", "title": None, "scale": {"domain": list(STATES), "range": tones}}
    field, title, ramp = {
        "age": ("age", "steps since last use", style.VIRIDIS),
        "fill": ("fill", "share of slots in use", style.CIVIDIS),
        "sharing": ("refs", "block tables that hold it", style.CIVIDIS),
    }[by]
    legend = {"orient": "bottom", "direction": "horizontal", "gradientLength": 160, "tickMinStep": 1 if field != "fill" else 0.25}
    return {"field": field, "type": "quantitative", "title": title, "scale": {"range": list(ramp)}, "legend": legend}


@lru_cache(maxsize=16)
def block_map_spec(theme: Theme, height: int = 220, by: str = "state") -> dict[str, Any]:
    """Cells in rows; a thin frame for each, its lower part coloured by one of `COLOURS`."""
    x = {"field": "column", "type": "quantitative", "axis": None, "scale": {"nice": False, "zero": True}}
    scale = {"reverse": True, "nice": False, "zero": True}
    tooltip = [{"field": name, "type": "nominal"} for name in ("block", "state", "tokens", "refs", "owner")]
    right = {"calculate": "datum.column + 0.92", "as": "right"}
    bottom = {"calculate": "datum.row + 0.92", "as": "bottom"}
    frame = {
        "mark": {"type": "rect", "fill": theme.grid, "opacity": 0.7},
        "encoding": {
            "x": x,
            "x2": {"field": "right"},
            "y": {"field": "row", "type": "quantitative", "axis": None, "scale": scale},
            "y2": {"field": "bottom"},
            "tooltip": tooltip,
        },
    }
    filled = {
        "transform": [{"filter": "datum.state !== 'free'"}],
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "x2": {"field": "right"},
            "y": {"field": "top", "type": "quantitative", "axis": None, "scale": scale},
            "y2": {"field": "bottom"},
            "color": _colour(theme, by),
            "tooltip": tooltip,
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "transform": [right, bottom],
        "layer": [frame, filled],
        "config": style.vega_config(theme),
    }
