"""Matrix products over packed panels, dealt to the threads of a team.

    out[T, N] = x[T, K] W^T      W packed as N / 16 panels; a thread takes GRAIN panels at a time from a counter

A panel (16 columns, all of K) stays in the first two cache levels while all rows pass over it, so weights come from
memory once a step. Many rows pass in chunks, each over all panels that the thread has taken, so their input stays there
too. At one row the product is a read of the weights at memory speed; from about eight rows on the multiply-adds are the
limit. Each output is one chain over k (see microkernel), whichever thread computes it.
"""

from __future__ import annotations

from core.runtime.kernels.coded import run_coded
from core.runtime.kernels.compiler import part
from core.runtime.kernels.memory import fetch_add
from core.runtime.kernels.microkernel import MAX_PAIR_ROWS, MAX_ROWS, STORE, tile, tile_1x4, tile_pair
from core.runtime.kernels.tiles import FLOAT_BYTES, LINE_BYTES, PAIRS_BYTES, PANEL, PANEL_BYTES, rows_of_tile
from core.runtime.kernels.vector import best_of, silu_mul

GRAIN = 4
GATED_ROWS = 96
GATED_FLOATS = GATED_ROWS * 32
"""Rows whose gate and up columns wait in scratch for the activation; small enough for the first cache level."""

CHUNK_BYTES = 256 * 1024
"""Rows pass over a thread's panels in chunks of so much input, which stay in the second cache level meanwhile."""

BEST_BYTES = 3 * PANEL_BYTES
"""A row's running maximum: largest values, their columns, and whether all were finite; see `best_of`."""


@part
def rows_of_chunk(k: int, size: int) -> int:
    """Rows whose input of `k` numbers each fits into CHUNK_BYTES, whole tiles."""
    return max(CHUNK_BYTES // (k * size) // MAX_PAIR_ROWS, 2) * MAX_PAIR_ROWS


@part
def _share(panel_bytes: int, tiles: int) -> int:
    """Bytes of a panel that each of so many tiles fetches, whole lines."""
    return (panel_bytes // LINE_BYTES + tiles - 1) // tiles * LINE_BYTES


@part
def _run_pair(fns: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, out: int, ldo: int, mode: int,
              ahead: int) -> None:  # fmt: skip
    """Two neighbouring panels of PAIRS for all rows; the two panels at `ahead` are fetched meanwhile."""
    row = 0
    tiles = (rows + MAX_PAIR_ROWS - 1) // MAX_PAIR_ROWS
    share = _share(panel_bytes, tiles)
    while row < rows:
        m = rows_of_tile(rows - row, MAX_PAIR_ROWS)
        source, target = x + row * ldx * PAIRS_BYTES, out + row * ldo * FLOAT_BYTES
        tile_pair(fns, m - 1, source, ldx, w, panel_bytes, PANEL_BYTES, k, target, ldo, mode, ahead, panel_bytes, tiles)
        ahead += share
        row += m


@part
def _run_panels(fns: int, size: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, count: int, room: int,
                out: int, ldo: int, mode: int, following: int) -> None:  # fmt: skip
    """`count` neighbouring panels for all rows; `following` is where the next ones lie, fetched meanwhile.

    room: 0, or where this thread unpacks coded panels.
    """
    if room != 0:
        run_coded(fns, x, ldx, rows, w, panel_bytes, k, count, room, out, ldo, mode, following)
        return
    if rows == 1:
        while count >= 4:
            ahead = w + 4 * panel_bytes if count > 4 else following
            tile_1x4(fns, x, ldx, w, panel_bytes, PANEL_BYTES, k, out, ldo, mode, ahead, panel_bytes, 1)
            w += 4 * panel_bytes
            out += 4 * PANEL_BYTES
            count -= 4
    elif size == PAIRS_BYTES:
        while count >= 2:
            ahead = w + 2 * panel_bytes if count > 2 else following
            _run_pair(fns, x, ldx, rows, w, panel_bytes, k, out, ldo, mode, ahead)
            w += 2 * panel_bytes
            out += 2 * PANEL_BYTES
            count -= 2
    for panel in range(count):
        row = 0
        ahead = w + (panel + 1) * panel_bytes if panel + 1 < count else following
        tiles = (rows + MAX_ROWS - 1) // MAX_ROWS
        share = _share(panel_bytes, tiles)
        while row < rows:
            m = rows_of_tile(rows - row, MAX_ROWS)
            target = out + panel * PANEL_BYTES + row * ldo * FLOAT_BYTES
            source, here = x + row * ldx * size, w + panel * panel_bytes
            tile(fns, m - 1, source, ldx, here, 0, PANEL_BYTES, k, target, ldo, mode, ahead, 0, tiles)
            ahead += share
            row += m


@part
def _take(ticket: int, total: int, threads: int, grain: int) -> tuple[int, int]:
    """The ticket's (start, count) of `total` units, `grain` at a time and single ones towards the end; count 0 past the end.

    A thread's first ticket is its own number, so that what it reads first is known while the phase before still runs;
    later ones come from the counter.
    """
    large = max(0, total - 2 * grain * (threads - 1)) // grain
    if ticket < large:
        return ticket * grain, grain
    start = large * grain + (ticket - large)
    return start, (1 if start < total else 0)


@part
def _take_panels(ticket: int, panels: int, threads: int, unit: int) -> tuple[int, int]:
    """The ticket's (start, count) of the panels, which stay together in units of `unit`."""
    start, count = _take(ticket, (panels + unit - 1) // unit, threads, GRAIN // unit)
    return start * unit, min(count * unit, panels - start * unit)


@part
def gemm(fns: int, size: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, panels: int, out: int, ldo: int,
         mode: int, counter: int, thread: int, threads: int, room: int, best: int, columns: int, after: int) -> None:  # fmt: skip
    """This thread's share of out (mode)= x W^T; every thread of the team calls it with the same arguments.

    size: bytes of a number of x.
    room: 0, or where this thread unpacks coded panels; coded ones know no mode ADD.
    after: what this thread will read first in the next product; fetched during its last panels.
    best: 0, or where this thread keeps BEST_BYTES a row of the largest among the first `columns` outputs; they are
    looked at while they are still in the cache.
    """
    chunk = rows_of_chunk(k, size)
    unit = 2 if size == PAIRS_BYTES and (rows > 1 or room != 0) else 1
    start, count = _take_panels(thread, panels, threads, unit)
    while count > 0:
        next_start, next_count = _take_panels(fetch_add(counter, 1) + threads, panels, threads, unit)
        ahead = w + next_start * panel_bytes if next_count > 0 else after
        target, here = out + start * PANEL_BYTES, w + start * panel_bytes
        for row in range(0, rows, chunk):
            following = ahead if row + chunk >= rows else here
            source, goal = x + row * ldx * size, target + row * ldo * FLOAT_BYTES
            m = min(chunk, rows - row)
            _run_panels(fns, size, source, ldx, m, here, panel_bytes, k, count, room, goal, ldo, mode, following)
        if best != 0:
            width = min(count * PANEL, columns - start * PANEL)
            for row in range(rows):
                best_of(fns, target + row * ldo * FLOAT_BYTES, width, start * PANEL, best + row * BEST_BYTES)
        start, count = next_start, next_count


@part
def first_read(w: int, panel_bytes: int, thread: int, panels: int) -> int:
    """Where a thread begins to read a product's weights, in groups of `panels` panels."""
    return w + thread * panels * panel_bytes


@part
def gemm_silu_mul(fns: int, size: int, x: int, ldx: int, rows: int, w: int, panel_bytes: int, k: int, pairs: int, out: int,
                  ldo: int, scratch: int, counter: int, thread: int, threads: int, room: int, after: int) -> None:  # fmt: skip
    """out = silu(gate) * up, the panels of W alternating gate and up; scratch holds GATED_FLOATS floats a thread.

    size: bytes of a number of x and of out.
    room, after: as in `gemm`.
    """
    start, count = _take(thread, pairs, threads, GRAIN)
    while count != 0:
        next_start, next_count = _take(fetch_add(counter, 1) + threads, pairs, threads, GRAIN)
        ahead = w + 2 * next_start * panel_bytes if next_count > 0 else after
        if rows == 1:
            here = w + 2 * start * panel_bytes
            _run_panels(fns, size, x, ldx, rows, here, panel_bytes, k, 2 * count, room, scratch, 2 * GRAIN * PANEL, STORE, ahead)
            silu_mul(fns, scratch, 2 * PANEL_BYTES, count, out + start * PANEL * size, PANEL * size)
        else:
            for row in range(0, rows, GATED_ROWS):
                m = min(GATED_ROWS, rows - row)
                last = ahead if row + GATED_ROWS >= rows else w + 2 * start * panel_bytes
                for pair in range(start, start + count):
                    here = w + 2 * pair * panel_bytes
                    following = here + 2 * panel_bytes if pair + 1 < start + count else last
                    source, target = x + row * ldx * size, out + (row * ldo + pair * PANEL) * size
                    _run_panels(fns, size, source, ldx, m, here, panel_bytes, k, 2, room, scratch, 2 * PANEL, STORE, following)
                    silu_mul(fns, scratch, 2 * PANEL_BYTES, m, target, ldo * size)
        start, count = next_start, next_count
