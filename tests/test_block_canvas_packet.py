"""What travels to the canvas at a tick, and the program that reads it."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest

from core.charts import style
from pages.parts.block_canvas import BLOCK_MAP, MODES, pack, palette
from pages.parts.element import ASSETS
from tests.fake_snapshots import busy_run, heavy_run

TICK_BYTES = 16_000


def unpack(packet: bytes) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """The reading side, as the browser's program does it."""
    raw = zlib.decompress(packet)
    length = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + length])
    at, out = 4 + length, {}
    for name, kind in (("owner", "<u2"), ("last_use", "<u2"), ("fill", "u1"), ("refs", "u1"), ("flags", "u1")):
        size = np.dtype(kind).itemsize * head["n"]
        out[name] = np.frombuffer(raw[at : at + size], kind)
        at += size
    assert at == len(raw)
    return head, out


def test_a_packet_holds_the_columns_and_the_owners() -> None:
    shot = busy_run(200).snapshot()
    chosen = shot.running[3]
    head, got = unpack(pack(shot.blocks, shot.running, mode="age", chosen=chosen.request_id))
    assert (head["n"], head["bs"], head["mode"], head["chosen"]) == (1024, 16, "age", chosen.request_id)
    assert tuple(head["table"]) == chosen.block_ids
    assert (head["hue"], head["status"]) == (chosen.hue, "running")
    for name in ("owner", "last_use", "fill", "refs", "flags"):
        assert got[name].tobytes() == getattr(shot.blocks, name)
    rows = {r.request_id: r for r in shot.running}
    assert [tuple(o) for o in head["owners"]] == [
        (i, rows[i].hue, len(rows[i].block_ids), rows[i].status) for i in shot.blocks.owners
    ]
    first = int(np.flatnonzero(got["owner"])[0])
    assert first in rows[head["owners"][got["owner"][first] - 1][0]].block_ids


def test_a_request_that_has_ended_or_is_unknown_has_an_empty_table() -> None:
    shot = busy_run(300).snapshot()
    over = shot.ended[0]
    head, _ = unpack(pack(shot.blocks, (*shot.running, *shot.ended), mode="owner", chosen=over.request_id))
    assert (head["table"], head["status"]) == ([], "finished")
    head, _ = unpack(pack(shot.blocks, shot.running, mode="owner", chosen="<script>"))
    assert (head["chosen"], head["table"], head["hue"]) == ("<script>", [], -1)


def test_an_unknown_mode_is_refused() -> None:
    shot = busy_run(1).snapshot()
    with pytest.raises(ValueError, match="'rainbow' is not known; choose one of: owner, state, age, fill, sharing"):
        pack(shot.blocks, (), mode="rainbow", chosen=None)


def test_4096_blocks_stay_small() -> None:
    shot = heavy_run(400).snapshot()
    assert shot.blocks.num_blocks == 4096
    assert len(pack(shot.blocks, shot.running, mode="owner", chosen=shot.running[0].request_id)) < TICK_BYTES


@pytest.mark.parametrize("theme", [style.DARK, style.LIGHT])
def test_the_canvas_paints_a_request_as_every_other_page_does(theme: style.Theme) -> None:
    for hue in (0, 137, 359):
        assert f"{palette(theme)['hue']}{hue})" == style.hue_colour(hue, theme)


def test_the_program_is_whole_and_writes_text_only_as_text() -> None:
    program = BLOCK_MAP.program()
    assert program.startswith('register("block_map"')
    for part in ("paintBlocks", "class BlockPanel", "class BlockMap", "function draw_block_map", '"viridis"'):
        assert part in program
    sources = "".join(p.read_text("utf-8") for p in ASSETS.glob("block_map*.js"))
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|outerHTML|eval\(", sources)


def test_every_mode_has_a_colour_rule_and_a_legend() -> None:
    paint = (ASSETS / "block_map_paint.js").read_text("utf-8")
    rules = paint[paint.index("const COLOUR_MODES") : paint.index("};", paint.index("const COLOUR_MODES"))]
    legend = (ASSETS / "block_map_panel.js").read_text("utf-8")
    for mode in MODES:
        assert re.search(rf"^  {mode}:", rules, re.M), mode
        assert re.search(rf"^    {mode}:", legend, re.M), mode
