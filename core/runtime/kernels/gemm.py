"""Matrix products over packed panels, dealt to the threads of a team.

    out[T, N] = x[T, K] W^T      W packed as N / 16 panels; a thread takes GRAIN panels at a time from a counter

A panel (16 columns, all of K) stays in the first two cache levels while all rows pass over it, so weights come from
memory once a step. At one row the product is a read of the weights at memory speed; from about eight rows on the
multiply-adds are the limit. Each output is one chain over k (see microkernel), whichever thread computes it.
"""

from __future__ import annotations

from typing import Any

from core.runtime.kernels.compiler import jit
from core.runtime.kernels.memory import fetch_add
from core.runtime.kernels.microkernel import (
    MAX_ROWS,
    STORE,
    natural_1x1,
    natural_2x1,
    natural_3x1,
    natural_4x1,
    natural_5x1,
    natural_6x1,
    tile_1x1,
    tile_1x4,
    tile_2x1,
    tile_2x2,
    tile_3x1,
    tile_4x1,
    tile_5x1,
    tile_6x1,
)
from core.runtime.kernels.vector import silu_mul

GRAIN = 4
FLOAT_BYTES = 4
PANEL = 16
PANEL_BYTES = PANEL * FLOAT_BYTES


@jit
def tile(tag: Any, rows: int, x: int, ldx: int, w: int, k_bytes: int, k: int, out: int, ldo: int, mode: int,
         ahead: int, ahead_step: int) -> None:  # fmt: skip
    """One panel for 1 to MAX_ROWS rows."""
    if rows == 6:
        tile_6x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)
    elif rows == 5:
        tile_5x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)
    elif rows == 4:
        tile_4x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)
    elif rows == 3:
        tile_3x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)
    elif rows == 2:
        tile_2x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)
    else:
        tile_1x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, ahead, ahead_step)


@jit
def tile_natural(tag: Any, rows: int, x: int, ldx: int, w: int, k_bytes: int, k: int, out: int, ldo: int, mode: int) -> None:
    """As `tile`, over 16 columns of unpacked rows that are k_bytes apart (values of a KV block)."""
    if rows == 6:
        natural_6x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)
    elif rows == 5:
        natural_5x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)
    elif rows == 4:
        natural_4x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)
    elif rows == 3:
        natural_3x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)
    elif rows == 2:
        natural_2x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)
    else:
        natural_1x1(tag, x, ldx, w, 0, k_bytes, k, out, ldo, mode, w, 0)


@jit
def rows_of_tile(rows_left: int) -> int:
    """Split the rows into equal tiles of at most MAX_ROWS: 16 rows are 6 + 5 + 5, not 6 + 6 + 4."""
    tiles = (rows_left + MAX_ROWS - 1) // MAX_ROWS
    return (rows_left + tiles - 1) // tiles


@jit
def _run_panels(tag: Any, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, count: int, out: int, ldo: int,
                mode: int, following: int) -> None:  # fmt: skip
    """`count` neighbouring panels for all rows; `following` is the panel that comes next, fetched meanwhile."""
    if rows == 1:
        while count >= 4:
            tile_1x4(tag, x, ldx, w, panel_bytes, PANEL_BYTES, k, out, ldo, mode, w, 0)
            w += 4 * panel_bytes
            out += 4 * PANEL_BYTES
            count -= 4
    elif rows == 2:
        while count >= 2:
            tile_2x2(tag, x, ldx, w, panel_bytes, PANEL_BYTES, k, out, ldo, mode, w, 0)
            w += 2 * panel_bytes
            out += 2 * PANEL_BYTES
            count -= 2
    for panel in range(count):
        row = 0
        ahead = w + (panel + 1) * panel_bytes if panel + 1 < count else following
        tiles = (rows + MAX_ROWS - 1) // MAX_ROWS
        step = PANEL_BYTES // tiles
        share = panel_bytes // tiles
        while row < rows:
            m = rows_of_tile(rows - row)
            target = out + panel * PANEL_BYTES + row * ldo * FLOAT_BYTES
            tile(tag, m, x + row * ldx * FLOAT_BYTES, ldx, w + panel * panel_bytes, PANEL_BYTES, k, target, ldo, mode,
                 ahead, step)  # fmt: skip
            ahead += share
            row += m


@jit
def _take(counter: int, total: int, threads: int) -> tuple[int, int]:
    """Next (start, count) of `total` units, GRAIN at a time and single ones towards the end; count 0 when none is left."""
    large = max(0, total - 2 * GRAIN * (threads - 1)) // GRAIN
    ticket = fetch_add(counter, 1)
    if ticket < large:
        return ticket * GRAIN, GRAIN
    start = large * GRAIN + (ticket - large)
    return start, (1 if start < total else 0)


@jit
def gemm(tag: Any, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, panels: int, out: int, ldo: int, mode: int,
         counter: int, threads: int) -> None:  # fmt: skip
    """This thread's share of out (mode)= x W^T; every thread of the team calls it with the same arguments."""
    start, count = _take(counter, panels, threads)
    while count != 0:
        next_start, next_count = _take(counter, panels, threads)
        target = out + start * PANEL_BYTES
        following = w + next_start * panel_bytes
        _run_panels(tag, x, ldx, rows, w + start * panel_bytes, panel_bytes, k, count, target, ldo, mode, following)
        start, count = next_start, next_count


@jit
def gemm_silu_mul(tag: Any, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, pairs: int, out: int, ldo: int,
                  scratch: int, counter: int, threads: int) -> None:  # fmt: skip
    """out = silu(gate) * up, the panels of W alternating gate and up; scratch holds MAX_ROWS * 32 floats a thread."""
    while True:
        start, count = _take(counter, pairs, threads)
        if count == 0:
            return
        for pair in range(start, start + count):
            row = 0
            while row < rows:
                m = rows_of_tile(rows - row)
                source = x + row * ldx * FLOAT_BYTES
                _run_panels(tag, source, ldx, m, w + 2 * pair * panel_bytes, panel_bytes, k, 2, scratch, 2 * PANEL, STORE, w)
                for r in range(m):
                    gate = scratch + r * 2 * PANEL_BYTES
                    target = out + (row + r) * ldo * FLOAT_BYTES + pair * PANEL_BYTES
                    silu_mul(gate, gate + PANEL_BYTES, target, PANEL)
                row += m
