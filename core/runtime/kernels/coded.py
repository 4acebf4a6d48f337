"""Products of a few rows over coded panels: two panels at a time decode in registers, between memory and multiply-add.

An output is the chain of multiply-adds over k of the plain panels, so it has the same bits. More than FEW_ROWS rows are
bound by arithmetic, where decoding costs more than its bytes save: they read the plain panels.
"""

from __future__ import annotations

from core.runtime.kernels.coding import COUNT_AT, PATCH_BYTES, PATCHES_AT, UNIT_BYTES, UNIT_K, UNIT_SHIFT
from core.runtime.kernels.compiler import part
from core.runtime.kernels.memory import load_i64
from core.runtime.kernels.microkernel import CONTINUE, MAX_ROWS, tile, tile_pair
from core.runtime.kernels.tiles import FLOAT_BYTES, PAIRS_BYTES, PANEL, PANEL_BYTES, rows_of_tile
from core.runtime.kernels.unpack import coded_pair, unpack

PIECE_K = 256
"""k of a panel that are unpacked at a time, where one is unpacked."""

K_BYTES = PANEL * PAIRS_BYTES
ROOM_BYTES = PIECE_K * K_BYTES
"""Room that a thread needs to unpack into."""


@part
def _next_patch(panel: int, first: int, none: int) -> int:
    """The first unit from `first` on that has a patch, or `none`."""
    for i in range(load_i64(panel + COUNT_AT)):
        unit: int = load_i64(panel + PATCHES_AT + PATCH_BYTES * i) >> UNIT_SHIFT
        if unit >= first:
            return unit
    return none


@part
def _run_pair(fns: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, header: int, k: int, room: int, out: int, ldo: int,
              mode: int, ahead: int) -> None:  # fmt: skip
    """Two panels; a unit with a patch is unpacked and multiplied like a plain one."""
    units, start = k // UNIT_K, 0
    while start < units:
        stop = min(_next_patch(w, start, units), _next_patch(w + panel_bytes, start, units))
        if stop > start:
            coded_pair(fns, rows - 1, x, ldx, w, panel_bytes, header, start, stop - start, out, ldo, mode, ahead)
            mode = CONTINUE
        if stop < units:
            unpack(fns, w, room, header, stop, 1)
            unpack(fns, w + panel_bytes, room + UNIT_K * K_BYTES, header, stop, 1)
            source = x + stop * UNIT_K * PAIRS_BYTES
            tile_pair(fns, rows - 1, source, ldx, room, UNIT_K * K_BYTES, PANEL_BYTES, UNIT_K, out, ldo, mode, room, 0, 0)
            mode = CONTINUE
        start = stop + 1


@part
def _run_one(fns: int, x: int, ldx: int, rows: int, w: int, header: int, k: int, room: int, out: int, ldo: int,
             mode: int) -> None:  # fmt: skip
    """The last panel of an odd number, unpacked piece by piece."""
    for first in range(0, k, PIECE_K):
        size = min(PIECE_K, k - first)
        unpack(fns, w, room, header, first // UNIT_K, size // UNIT_K)
        row = 0
        while row < rows:
            m = rows_of_tile(rows - row, MAX_ROWS)
            source, target = x + (row * ldx + first) * PAIRS_BYTES, out + row * ldo * FLOAT_BYTES
            tile(fns, m - 1, source, ldx, room, 0, PANEL_BYTES, size, target, ldo, mode, room, 0, 0)
            row += m
        mode = CONTINUE


@part
def run_coded(fns: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, count: int, room: int, out: int, ldo: int,
              mode: int, following: int) -> None:  # fmt: skip
    """`count` neighbouring coded panels for at most FEW_ROWS rows; `following` is where the next ones lie, fetched meanwhile.

    mode: STORE or CONTINUE.
    room: ROOM_BYTES of this thread.
    """
    header = panel_bytes - k // UNIT_K * UNIT_BYTES
    while count >= 2:
        ahead = w + 2 * panel_bytes if count > 2 else following
        _run_pair(fns, x, ldx, rows, w, panel_bytes, header, k, room, out, ldo, mode, ahead)
        w += 2 * panel_bytes
        out += 2 * PANEL_BYTES
        count -= 2
    if count > 0:
        _run_one(fns, x, ldx, rows, w, header, k, room, out, ldo, mode)
