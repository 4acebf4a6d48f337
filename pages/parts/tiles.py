"""The tiles of the figures that matter, as one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from core.charts.tiles import Tile
from core.charts.tiles import tiles as tiles_of
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import save_as
from pages.parts.element import LiveElement

_element = LiveElement("tiles")


def payload(tiles: Sequence[Tile]) -> list[dict[str, Any]]:
    """Tiles as plain data; lines to three significant figures."""
    return [
        {
            "label": tile.label,
            "value": tile.value,
            "note": tile.note,
            "help": tile.help,
            "line": [None if v is None else float(f"{v:.3g}") for v in tile.line],
            "floor": tile.floor,
            "ceiling": tile.ceiling,
        }
        for tile in tiles
    ]


def tile_rows(tiles: Sequence[Tile]) -> pd.DataFrame:
    """Tiles as rows: a row for each point of a line, or one without a point; label, value and note are repeated."""
    rows = [(tile.label, tile.value, tile.note, k, value) for tile in tiles for k, value in enumerate(tile.line or (None,))]
    return pd.DataFrame(rows, columns=["figure", "value", "note", "point", "line"]).astype({"line": "float64"})


def draw_tiles(snapshot: EngineSnapshot, history: Sequence[StepRecord], *, key: str = "tiles") -> None:
    """Draw the six tiles."""
    show_tiles(tiles_of(snapshot, history), key=key)


def show_tiles(tiles: Sequence[Tile], *, key: str) -> None:
    """Draw any tiles."""
    save_as.table(key, lambda: tile_rows(tiles))
    _element.draw(payload(tiles), key=key)
