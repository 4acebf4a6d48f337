"""The tiles of the figures that matter, as one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.charts.tiles import Tile
from core.charts.tiles import tiles as tiles_of
from core.records import StepRecord
from core.snapshot import EngineSnapshot
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


def draw_tiles(snapshot: EngineSnapshot, history: Sequence[StepRecord], *, key: str = "tiles") -> None:
    """Draw the six tiles."""
    show_tiles(tiles_of(snapshot, history), key=key)


def show_tiles(tiles: Sequence[Tile], *, key: str) -> None:
    """Draw any tiles."""
    _element.draw(payload(tiles), key=key)
