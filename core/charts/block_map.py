"""The block map as a figure for print: every physical block of one step as a cell, filled as far as it is used.

+--+--+--+--+
|##|##|# |//|      height of the colour = share of the block's slots in use, colour = live, cached or free
+--+--+--+--+
"""

from __future__ import annotations

import math
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


def columns_of(num_blocks: int) -> int:
    """Cells in a row: at most 64, and about four times as wide as high for a small pool."""
    return min(MOST_COLUMNS, max(math.ceil(2 * math.sqrt(num_blocks)), 1))


def block_frame(view: BlockMapView) -> pd.DataFrame:
    """Columns block, column, row, top (where the filled part begins), state, tokens, refs, owner."""
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
        }
    )


@lru_cache(maxsize=4)
def block_map_spec(theme: Theme, height: int = 220) -> dict[str, Any]:
    """Cells in rows; a thin frame for each, its lower part coloured by state."""
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
            "color": {
                "field": "state",
                "type": "nominal",
                "title": None,
                "scale": {
                    "domain": list(STATES),
                    "range": [style.colour("useful", theme), style.colour("cached", theme), theme.grid],
                },
            },
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
