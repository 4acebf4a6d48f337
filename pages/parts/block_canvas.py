"""The block map element: a canvas of all physical KV blocks, fed with one compressed packet a tick.

    packet = zlib( u32 length | JSON header | owner u16[n] | last_use u16[n] | fill u8[n] | refs u8[n] | flags u8[n] )

A map of 4,096 blocks costs a few kilobytes a tick; the browser unpacks it into typed arrays and repaints the canvas
whole in one animation frame.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.charts import block_map, style
from core.charts.arrow import table
from core.errors import ExportError
from core.snapshot import BlockMapView, EngineSnapshot, RequestView
from pages.parts.element import ASSETS, LiveElement, squeeze, trigger

MODES = {
    "owner": "owner",
    "state": "state",
    "age": "last use",
    "fill": "fill",
    "sharing": "sharing",
}
"""Colour modes of the canvas and their names on the page."""

_UNKNOWN_HUE = -1
_SCRIPTS = ("block_map_paint.js", "block_map_panel.js")


def palette(theme: style.Theme) -> dict[str, Any]:
    """Colours of the canvas on one ground; `hue` is the start of a CSS colour that ends with the hue and a bracket.

    The ends of the ramps that would sink into the ground are left out.
    """
    on_dark = theme.name == "dark"
    return {
        "hue": style.hue_colour(0, theme).removesuffix("0)"),
        "ground": theme.ground,
        "text": theme.text,
        "muted": theme.muted,
        "free": f"{style.IDLE}80",
        "unfilled": theme.line,
        "useful": style.colour("useful", theme),
        "shared": style.colour("shared", theme),
        "idle": style.colour("idle", theme),
        "viridis": list(style.VIRIDIS[1:] if on_dark else style.VIRIDIS[:-1]),
        "cividis": list(style.CIVIDIS[2:] if on_dark else style.CIVIDIS[:-1]),
    }


class BlockMapElement(LiveElement):
    """The canvas with its panel; its program is three scripts, because each owns one part of the picture."""

    def program(self) -> str:
        """Painting, panel and element as one script, with the palette of the style module in front."""
        colours = {theme.name: palette(theme) for theme in (style.DARK, style.LIGHT)}
        scripts = [squeeze((ASSETS / name).read_text("utf-8")) for name in (*_SCRIPTS, f"{self.name}.js")]
        sheet = json.dumps(squeeze((ASSETS / f"{self.name}.css").read_text("utf-8")))
        body = "\n".join([f"const PALETTE = {json.dumps(colours)};", *scripts])
        return f"register({json.dumps(self.name)}, {sheet}, (() => {{\n{body}\nreturn draw_{self.name};\n}})());"


BLOCK_MAP = BlockMapElement("block_map", is_raw=True)


def block_figure(snapshot: EngineSnapshot, mode: str, theme: style.Theme) -> tuple[dict[str, Any], pa.Table]:
    """The map as a chart for paper: specification and data, coloured as on the page.

    Raises:
        ExportError: if the pool is too large for that.
    """
    if not 0 < snapshot.blocks.num_blocks <= block_map.MOST_ON_PAPER:
        raise ExportError("a pool of this size does not fit on paper, cell by cell")
    rows = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
    cells = block_map.owner_colours(block_map.block_frame(snapshot.blocks), {row.request_id: row.hue for row in rows})
    height = min(max(14 * (int(cells["row"].max()) + 1), 60), 320)
    return block_map.block_map_spec(theme, height, mode), table(cells)


def pack(view: BlockMapView, requests: Sequence[RequestView], *, mode: str, chosen: str | None) -> bytes:
    """Build a packet.

    Args:
        requests: rows that give owners their hue, status and number of blocks, and the chosen one its block table.
        mode: a key of `MODES`.
        chosen: id of the chosen request; it may be one that has ended.

    Raises:
        ValueError: for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"colour mode {mode!r} is not known; choose one of: {', '.join(MODES)}")
    rows: Mapping[str, RequestView] = {r.request_id: r for r in requests}
    owners: list[tuple[str, int, int, str]] = []
    for request_id in view.owners:
        row = rows.get(request_id)
        owners.append((request_id, row.hue, len(row.block_ids), row.status) if row else (request_id, _UNKNOWN_HUE, 0, ""))
    row = rows.get(chosen) if chosen is not None else None
    header = {
        "n": view.num_blocks,
        "bs": view.block_size,
        "mode": mode,
        "owners": owners,
        "chosen": chosen,
        "status": row.status if row else "",
        "hue": row.hue if row else _UNKNOWN_HUE,
        "table": row.block_ids if row else (),
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    parts = (len(head).to_bytes(4, "little"), head, view.owner, view.last_use, view.fill, view.refs, view.flags)
    return zlib.compress(b"".join(parts), 1)


def block_canvas(packet: bytes, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw a packet. `on_pick` runs when a cell, a holder or Clear is chosen; `picked(key)` then has the id."""
    BLOCK_MAP.draw(packet, key=key, on_pick_change=on_pick)


def picked(key: str) -> str | None:
    """The request id of the pick that is being handled; None means that the choice was cleared."""
    pick = trigger(key, "pick")
    request = pick.get("request") if isinstance(pick, dict) else None
    return request if isinstance(request, str) else None
