"""Attention straight over the block table, for decode tokens and prompt chunks alike.

    unit = (item, some KV heads);  item = (row, up to ITEM_ROWS / heads query tokens);  segment by segment of the context:
      16 key rows -> transpose -> panel      scores[rows, 16] = q * panel          (the register tiles of the products)
      softmax of the segment, running maximum and sum (online softmax)
      out[rows, 16 columns] += p * value rows, in slot order

A key or value is read once for all query heads of its group and all query tokens of the item, and a block's heads are
fetched together because they lie together. Segments start at multiples of SEGMENT of the context, whatever the
chunking, and every sum runs in slot order, so a token's result is the same bits whether it is computed alone, in a
batch, or inside a chunk. Rows are reached through a list of addresses, so any block size runs at the same speed.

Where the processor multiplies bfloat16 (PAIRS) q and p are rounded to it, and two panels or 64 columns pass at a time.
"""

from __future__ import annotations

import math

import numpy as np

from core.runtime.kernels.compiler import part
from core.runtime.kernels.memory import load_f32, load_i32, load_i64, store_f32, store_i64
from core.runtime.kernels.microkernel import (
    CONTINUE,
    MAX_PAIR_ROWS,
    MAX_ROWS,
    STORE,
    tile,
    tile_listed,
    tile_listed_4,
    tile_pair,
)
from core.runtime.kernels.tiles import FLOAT_BYTES, PAIRS_BYTES, PANEL, PANEL_BYTES
from core.runtime.kernels.vector import exp_one, exp_sum, fetch_rows, fill, mask_max, scale, transpose

SEGMENT = 128
ITEM_ROWS = 144
NO_SCORE = np.float32(-math.inf)


def scratch_bytes(head_dim: int) -> int:
    """Bytes that one thread needs: q and out, scores, a key panel, maxima and sums, row addresses."""
    queries = 2 * ITEM_ROWS * head_dim * FLOAT_BYTES
    scores = ITEM_ROWS * SEGMENT * FLOAT_BYTES
    return queries + scores + PANEL * head_dim * FLOAT_BYTES + 2 * ITEM_ROWS * FLOAT_BYTES + SEGMENT * 8


@part
def _list_rows(addresses: int, cache: int, table: int, first: int, count: int, block_size: int, block_bytes: int,
               row_bytes: int) -> None:  # fmt: skip
    """Addresses of the rows of slots first .. first + count; the last one is repeated to fill the last panel."""
    index, offset = first // block_size, first % block_size
    place = cache + load_i32(table + 4 * index) * block_bytes + offset * row_bytes
    for s in range(count):
        store_i64(addresses + 8 * s, place)
        place += row_bytes
        offset += 1
        if offset == block_size and s + 1 < count:
            index, offset = index + 1, 0
            place = cache + load_i32(table + 4 * index) * block_bytes
    last = load_i64(addresses + 8 * (count - 1))
    for s in range(count, (count + PANEL - 1) // PANEL * PANEL):
        store_i64(addresses + 8 * s, last)


@part
def _score_tiles(products: int, size: int, rows: int, head_dim: int, query: int, panel: int, panels: int, target: int) -> None:
    """target[rows, 16 * panels] = q k^T for one panel of keys, or two of PAIRS that lie side by side."""
    most = MAX_PAIR_ROWS if panels == 2 else MAX_ROWS
    row = 0
    while row < rows:
        m = min(most, rows - row)
        q, out = query + row * head_dim * size, target + row * SEGMENT * FLOAT_BYTES
        if panels == 2:
            second = head_dim * PAIRS_BYTES * PANEL
            tile_pair(products, m - 1, q, head_dim, panel, second, PANEL_BYTES, head_dim, out, SEGMENT, STORE, panel, 0, 0)
        else:
            tile(products, m - 1, q, head_dim, panel, 0, PANEL_BYTES, head_dim, out, SEGMENT, STORE, panel, 0, 0)
        row += m


@part
def _score_segment(fns: int, products: int, size: int, rows: int, kv_heads: int, head_dim: int, query: int, scores: int,
                   panel: int, addresses: int, values_shift: int, count: int, head_bytes: int,
                   row_bytes: int) -> None:  # fmt: skip
    """scores[kv_heads * rows, count] = q k^T, 16 or 32 slots at a time; the next keys and these values are fetched meanwhile."""
    together = 2 * PANEL if size == PAIRS_BYTES else PANEL
    fetch_rows(fns, addresses, min(count, together), 0, row_bytes, kv_heads, head_bytes)
    for start in range(0, count, together):
        here = addresses + 8 * start
        left = count - start - together
        panels = (min(count - start, together) + PANEL - 1) // PANEL
        for head in range(kv_heads):
            if left > 0:
                fetch_rows(fns, here + 8 * together, min(left, together), head * head_bytes, row_bytes, 1, 0)
            for p in range(panels):
                place = panel + p * head_dim * PAIRS_BYTES * PANEL
                transpose(fns, here + 8 * PANEL * p, head * head_bytes, row_bytes // 4, place)
            fetch_rows(fns, here, min(count - start, together), values_shift + head * head_bytes, row_bytes, 1, 0)
            target = scores + (head * rows * SEGMENT + start) * FLOAT_BYTES
            _score_tiles(products, size, rows, head_dim, query + head * rows * head_dim * size, panel, panels, target)


@part
def _weigh_segment(products: int, size: int, rows: int, kv_heads: int, head_dim: int, scores: int, out: int, addresses: int,
                   shift: int, count: int, head_bytes: int, element: int) -> None:  # fmt: skip
    """out[kv_heads * rows, head_dim] += p v over `count` listed rows, in slot order."""
    columns = 4 * PANEL if size == PAIRS_BYTES and head_dim % (4 * PANEL) == 0 else PANEL
    stride = SEGMENT * FLOAT_BYTES // size
    for head in range(kv_heads):
        for column in range(0, head_dim, columns):
            values = shift + head * head_bytes + column * element
            row = 0
            while row < rows:
                m = min(MAX_ROWS, rows - row)
                line = head * rows + row
                source = scores + line * SEGMENT * FLOAT_BYTES
                target = out + (line * head_dim + column) * FLOAT_BYTES
                if columns == PANEL:
                    tile_listed(products, m - 1, source, stride, addresses, values, count, target, head_dim, CONTINUE)
                else:
                    tile_listed_4(products, m - 1, source, stride, addresses, values, count, target, head_dim, CONTINUE)
                row += m


@part
def _softmax_row(fns: int, products: int, line: int, out: int, head_dim: int, maximum: int, total: int, count: int, low: int,
                 high: int) -> None:  # fmt: skip
    """Scores of one row to weights, in place, slots outside [low, high) to 0; earlier sums go over to the new maximum."""
    padded = (count + PANEL - 1) // PANEL * PANEL
    before = load_f32(maximum)
    largest = mask_max(fns, line, padded, low, high)
    if largest < before:
        largest = before
    weight = np.float32(0.0)
    if largest > NO_SCORE:
        weight = exp_sum(products, line, padded, largest)
    else:  # nothing seen yet (all below the window): weights of zero, not exp(-inf + inf)
        fill(fns, line, padded, np.float32(0.0))
    if before > NO_SCORE:
        shrink = exp_one(fns, before - largest)
        if largest > before:
            scale(fns, out, out, head_dim, shrink)
        weight += load_f32(total) * shrink
    store_f32(maximum, largest)
    store_f32(total, weight)


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
def attend(fns: int, products: int, size: int, query: int, query_stride: int, positions: int, tokens: int, kv_heads: int,
           group: int, head_dim: int, keys: int, values: int, table: int, block_size: int, block_bytes: int, head_bytes: int,
           row_bytes: int, context: int, window: int, factor: float, result: int, result_stride: int, scratch: int,
           writes: int, result_size: int) -> None:  # fmt: skip
    """One unit: `tokens` query tokens of one row, `kv_heads` neighbouring KV heads; tokens * heads <= ITEM_ROWS.

    query, result: the first head at the item's first token; strides in floats from token to token. A token at
    position p sees the slots (p - window, p], or [0, p] without a window.
    products, size: table of the products here, and the bytes of their inputs q and p.
    writes, result_size: table whose `scale` writes the result as inputs of the next product, and the bytes of one.
    keys, values: the layer's cache at the first KV head; strides from block to block, head to head, slot to slot.
    context: 0, or slots that are read whether seen or not, as a padded batch does; what nobody sees is thrown away.
    """
    rows, width = tokens * group, group * head_dim
    total_rows = rows * kv_heads
    q = scratch
    out = q + ITEM_ROWS * head_dim * FLOAT_BYTES
    scores = out + ITEM_ROWS * head_dim * FLOAT_BYTES
    panel = scores + ITEM_ROWS * SEGMENT * FLOAT_BYTES
    maxima = panel + PANEL * head_dim * FLOAT_BYTES
    sums = maxima + ITEM_ROWS * FLOAT_BYTES
    addresses = sums + ITEM_ROWS * FLOAT_BYTES
    for head in range(kv_heads):
        for t in range(tokens):
            source = query + (t * query_stride + head * width) * FLOAT_BYTES
            scale(products, source, q + (head * rows + t * group) * head_dim * size, width, factor)
    fill(fns, out, total_rows * head_dim, np.float32(0.0))
    fill(fns, maxima, ITEM_ROWS, NO_SCORE)
    fill(fns, sums, ITEM_ROWS, np.float32(0.0))
    low, high = _visible_range(positions, tokens, window)
    shift = values - keys
    first = 0 if context > 0 else low // SEGMENT * SEGMENT
    while first < max(high, context):
        count = min(SEGMENT, max(high, context) - first)
        seen = max(0, min(high, first + count) - first)
        _list_rows(addresses, keys, table, first, count, block_size, block_bytes, row_bytes)
        _score_segment(
            fns, products, size, rows, kv_heads, head_dim, q, scores, panel, addresses, shift, count, head_bytes, row_bytes
        )
        if seen > 0:
            for line in range(total_rows):
                end = load_i32(positions + 4 * (line % rows // group)) + 1 - first
                start = end - window if window > 0 else 0
                _softmax_row(fns, products, scores + line * SEGMENT * FLOAT_BYTES, out + line * head_dim * FLOAT_BYTES, head_dim,
                             maxima + 4 * line, sums + 4 * line, count, start, min(count, end))  # fmt: skip
            _weigh_segment(products, size, rows, kv_heads, head_dim, scores, out, addresses, shift, seen, head_bytes,
                           row_bytes // head_dim)  # fmt: skip
        if seen < count:  # perhaps never written: real work, thrown away into q, which no later segment needs
            _weigh_segment(products, size, rows, kv_heads, head_dim, scores, q, addresses + 8 * seen, shift, count - seen,
                           head_bytes, row_bytes // head_dim)  # fmt: skip
        first += SEGMENT
    for line in range(total_rows):
        head, row = line // rows, line % rows
        target = result + ((row // group) * result_stride + head * width + (row % group) * head_dim) * result_size
        scale(writes, out + line * head_dim * FLOAT_BYTES, target, head_dim, np.float32(1.0) / load_f32(sums + 4 * line))
