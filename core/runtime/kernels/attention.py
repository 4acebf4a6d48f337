"""Attention straight over the block table, for decode tokens and prompt chunks alike.

    item = (row, up to ITEM_ROWS query vectors of one KV head's group)     one pass over the row's blocks in segments:
      16 key rows -> transpose -> panel      scores[rows, 16] = q * panel          (the register tile of the products)
      softmax of the segment, running maximum and sum (online softmax)
      out[rows, 16 columns] += p * value rows, in slot order

A key or value is read once for all query heads of its group and all query tokens of the item. Segments start at
multiples of SEGMENT of the context, whatever the chunking, and every sum runs in slot order, so a token's result is
the same bits whether it is computed alone, in a batch, or inside a chunk. Slots outside a row's context are never
read: a short last panel is filled up with a row of zeros.
"""

from __future__ import annotations

import math
import numpy as np

from core.runtime.kernels.compiler import part
from core.runtime.kernels.gemm import FLOAT_BYTES, PANEL, PANEL_BYTES
from core.runtime.kernels.memory import load_f32, load_i32, store_f32, store_i64
from core.runtime.kernels.microkernel import CONTINUE, MAX_ROWS, STORE, tile, tile_natural
from core.runtime.kernels.vector import copy_bytes, exp_one, exp_sum, fill, mask_max, scale, transpose

SEGMENT = 128
ITEM_ROWS = 48
SHORT_RUN = 8
"""Value runs shorter than this are gathered first (small blocks); longer ones are read in place."""

NO_SCORE = np.float32(-math.inf)


def scratch_bytes(head_dim: int) -> int:
    """Bytes that one thread needs: q and out, scores, key panel, values, maxima and sums, row addresses, zeros."""
    queries = 2 * ITEM_ROWS * head_dim * FLOAT_BYTES
    scores = ITEM_ROWS * SEGMENT * FLOAT_BYTES
    tiles = 2 * PANEL * head_dim * FLOAT_BYTES
    return queries + scores + tiles + 2 * ITEM_ROWS * FLOAT_BYTES + PANEL * 8 + head_dim * FLOAT_BYTES


@part
def slot_address(base: int, table: int, position: int, block_size: int, block_bytes: int, row_bytes: int) -> int:
    """Address of one key or value row; `base` is the layer's cache at the wanted head."""
    block = load_i32(table + 4 * (position // block_size))
    return base + block * block_bytes + (position % block_size) * row_bytes


@part
def _tiles(fns: int, natural: bool, rows: int, x: int, ldx: int, w: int, k_bytes: int, k: int, out: int, ldo: int,
           mode: int) -> None:  # fmt: skip
    row = 0
    while row < rows:
        m = min(MAX_ROWS, rows - row)
        source, target = x + row * ldx * FLOAT_BYTES, out + row * ldo * FLOAT_BYTES
        if natural:
            tile_natural(fns, m - 1, source, ldx, w, 0, k_bytes, k, target, ldo, mode, w, 0)
        else:
            tile(fns, m - 1, source, ldx, w, 0, k_bytes, k, target, ldo, mode, w, 0)
        row += m


@part
def _score_segment(fns: int, rows: int, head_dim: int, query: int, scores: int, panel: int, addresses: int, zeros: int,
                   keys: int, table: int, first: int, count: int, block_size: int, block_bytes: int,
                   row_bytes: int) -> None:  # fmt: skip
    """scores[rows, count] = q k^T for the slots first .. first + count, 16 at a time."""
    start = 0
    while start < count:
        for s in range(PANEL):
            address = zeros
            if start + s < count:
                address = slot_address(keys, table, first + start + s, block_size, block_bytes, row_bytes)
            store_i64(addresses + 8 * s, address)
        transpose(fns, addresses, row_bytes // 4, panel)
        target = scores + start * FLOAT_BYTES
        _tiles(fns, False, rows, query, head_dim, panel, PANEL_BYTES, head_dim, target, SEGMENT, STORE)
        start += PANEL


@part
def _weigh_segment(fns: int, rows: int, head_dim: int, scores: int, out: int, gathered: int, values: int, table: int,
                   first: int, count: int, block_size: int, block_bytes: int, row_bytes: int) -> None:  # fmt: skip
    """out[rows, head_dim] += p v for the slots first .. first + count, in slot order."""
    element = row_bytes // head_dim
    done = 0
    while done < count:
        position = first + done
        run = min(count - done, block_size - position % block_size)
        source = slot_address(values, table, position, block_size, block_bytes, row_bytes)
        if run < SHORT_RUN:
            run = min(count - done, PANEL)
            for s in range(run):
                address = slot_address(values, table, position + s, block_size, block_bytes, row_bytes)
                copy_bytes(fns, address, gathered + s * row_bytes, row_bytes)
            source = gathered
        weights = scores + done * FLOAT_BYTES
        for column in range(0, head_dim, PANEL):
            _tiles(fns, True, rows, weights, SEGMENT, source + column * element, row_bytes, run,
                   out + column * FLOAT_BYTES, head_dim, CONTINUE)  # fmt: skip
        done += run


@part
def _softmax_segment(fns: int, rows: int, group: int, head_dim: int, scores: int, out: int, maxima: int, sums: int, first: int, count: int,
                     positions: int, window: int) -> None:  # fmt: skip
    """Scores of a segment to weights, in place; earlier sums are rescaled to the new maximum.

    The query token at position p sees the slots (p - window, p], or [0, p] without a window.
    """
    padded = (count + PANEL - 1) // PANEL * PANEL
    for row in range(rows):
        position = load_i32(positions + 4 * (row // group))
        low = position + 1 - window if window > 0 else 0
        line = scores + row * SEGMENT * FLOAT_BYTES
        before = load_f32(maxima + 4 * row)
        largest = mask_max(fns, line, padded, low - first, min(count, position + 1 - first))
        if largest < before:
            largest = before
        total = np.float32(0.0)
        if largest > NO_SCORE:
            total = exp_sum(fns, line, padded, largest)
        else:  # nothing seen yet (below the window): weights of zero, not exp(-inf + inf)
            fill(fns, line, padded, np.float32(0.0))
        if before > NO_SCORE:
            shrink = exp_one(fns, before - largest)
            if largest > before:
                scale(fns, out + row * head_dim * FLOAT_BYTES, out + row * head_dim * FLOAT_BYTES, head_dim, shrink)
            total += load_f32(sums + 4 * row) * shrink
        store_f32(maxima + 4 * row, largest)
        store_f32(sums + 4 * row, total)


@part
def _visible_range(positions: int, tokens: int, window: int) -> tuple[int, int]:
    """First and one past the last slot that any of the tokens sees."""
    least = load_i32(positions)
    most = least
    for t in range(1, tokens):
        position = load_i32(positions + 4 * t)
        least, most = min(least, position), max(most, position)
    low = max(0, least + 1 - window) if window > 0 else 0
    return low, most + 1


@part
def attend(fns: int, query: int, query_stride: int, positions: int, tokens: int, group: int, head_dim: int, keys: int,
           values: int, table: int, block_size: int, block_bytes: int, row_bytes: int, context: int, window: int,
           factor: float, result: int, result_stride: int, scratch: int) -> None:  # fmt: skip
    """One item: `tokens` query tokens of one row and all query heads of one KV head; tokens * group <= ITEM_ROWS.

    query, result: the group's first head at the item's first token; strides in floats from token to token.
    keys, values: the layer's cache at this KV head; block_bytes from block to block, row_bytes from slot to slot.
    context: 0, or slots that are read whether seen or not, as a padded batch does; what nobody sees is thrown away.
    """
    rows = tokens * group
    q = scratch
    out = q + ITEM_ROWS * head_dim * FLOAT_BYTES
    scores = out + ITEM_ROWS * head_dim * FLOAT_BYTES
    panel = scores + ITEM_ROWS * SEGMENT * FLOAT_BYTES
    gathered = panel + PANEL * head_dim * FLOAT_BYTES
    maxima = gathered + PANEL * head_dim * FLOAT_BYTES
    sums = maxima + ITEM_ROWS * FLOAT_BYTES
    addresses = sums + ITEM_ROWS * FLOAT_BYTES
    zeros = addresses + PANEL * 8
    for t in range(tokens):
        scale(fns, query + t * query_stride * FLOAT_BYTES, q + t * group * head_dim * FLOAT_BYTES, group * head_dim, factor)
    fill(fns, out, rows * head_dim, np.float32(0.0))
    fill(fns, maxima, ITEM_ROWS, NO_SCORE)
    fill(fns, sums, ITEM_ROWS, np.float32(0.0))
    low, high = _visible_range(positions, tokens, window)
    first = 0 if context > 0 else low // SEGMENT * SEGMENT
    while first < max(high, context):
        count = min(SEGMENT, max(high, context) - first)
        _score_segment(fns, rows, head_dim, q, scores, panel, addresses, zeros, keys, table, first, count, block_size,
                       block_bytes, row_bytes)  # fmt: skip
        seen = max(0, min(high, first + count) - first)
        if seen > 0:
            _softmax_segment(fns, rows, group, head_dim, scores, out, maxima, sums, first, count, positions, window)
            _weigh_segment(fns, rows, head_dim, scores, out, gathered, values, table, first, seen, block_size, block_bytes,
                           row_bytes)  # fmt: skip
        if seen < count:  # perhaps never written: real work, thrown away into q, which no later segment needs
            _weigh_segment(fns, rows, head_dim, scores, q, gathered, values, table, first + seen, count - seen, block_size,
                           block_bytes, row_bytes)  # fmt: skip
        first += SEGMENT
    for row in range(rows):
        target = result + ((row // group) * result_stride + (row % group) * head_dim) * FLOAT_BYTES
        scale(fns, out + row * head_dim * FLOAT_BYTES, target, head_dim, np.float32(1.0) / load_f32(sums + 4 * row))
