"""Flash attention straight over the block table, in Triton: no gathered copy of keys or values, scores never stored.

    m' = max(m, max s)      l' = l e^(m - m') + sum e^(s - m')      acc' = acc e^(m - m') + e^(s - m') v      out = acc / l

decode   program (row, kv head, part): the group's query heads share each key and value read; the context is cut into at
         most PARTS parts, whose (m, l, acc) `decode_join` adds up. The cut depends on the row's own context only.
prefill  program (tile of queries, kv head): queries x group rows of one matrix, causal; contexts of earlier chunks are read
         from the cache like the tile's own keys, so a chunk is nothing special.

Slot j of a row: block = table[j // block_size], at ((block * kv heads + head) * block_size + j % block_size) * head_dim.
Exponents are base 2 with log2(e) in `scale`. The online softmax is Milakov and Gimelshein's (2018), cutting the context
Flash-Decoding's (Dao et al., 2023).
"""

import triton
import triton.language as tl


@triton.jit
def _first_slot(context, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """First slot to read, a multiple of TILE: 0, or the tile in which the window of the last query begins."""
    first = context * 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0) // TILE * TILE
    return first


@triton.jit
def _part_length(context, first, TILE: tl.constexpr, PARTS: tl.constexpr):
    """Slots of a part: whole tiles, as few as PARTS parts allow."""
    return tl.cdiv(tl.cdiv(context - first, TILE), PARTS) * TILE


@triton.jit
def decode_parts(
    query, key, value, tables, meta, rows, query_start, context_lens, partial, sums, scale,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """partial [decode rows, heads, PARTS, HEAD] and sums [decode rows, heads, PARTS, 2] float32, of parts that hold slots."""
    index, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + index)
    context = tl.load(context_lens + row)
    first = _first_slot(context, WINDOW, TILE)
    length = _part_length(context, first, TILE, PARTS)
    begin = first + part * length
    end = tl.minimum(begin + length, context)
    if begin >= end:
        return
    token = tl.load(query_start + row).to(tl.int64)
    table = tables + row.to(tl.int64) * tl.load(meta)
    member = tl.arange(0, GROUP_PAD)
    lane = tl.arange(0, HEAD_PAD)
    column = tl.arange(0, TILE)
    heads = kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (lane < HEAD)[None, :]
    q = tl.load(query + (token * (KV_HEADS * GROUP) + heads)[:, None] * HEAD + lane[None, :], mask=inside, other=0.0)
    best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, HEAD_PAD], tl.float32)
    for at in range(begin, end, TILE):
        slot = at + column
        held = slot < end
        block = tl.load(table + slot // BLOCK, mask=held, other=0).to(tl.int64)
        place = ((block * KV_HEADS + kv_head) * BLOCK + slot % BLOCK) * HEAD
        k = tl.load(key + place[None, :] + lane[:, None], mask=held[None, :] & (lane < HEAD)[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        seen = held
        if WINDOW > 0:
            seen = held & (slot > context - 1 - WINDOW)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(best - higher)
        v = tl.load(value + place[:, None] + lane[None, :], mask=held[:, None] & (lane < HEAD)[None, :], other=0.0)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(weight, 1)
        best = higher
    out = (index.to(tl.int64) * (KV_HEADS * GROUP) + heads) * PARTS + part
    tl.store(partial + out[:, None] * HEAD + lane[None, :], acc, mask=inside)
    tl.store(sums + out * 2, best, mask=member < GROUP)
    tl.store(sums + out * 2 + 1, total, mask=member < GROUP)


@triton.jit
def decode_join(
    partial, sums, rows, query_start, context_lens, out,
    HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Add the parts of a row's head up: out[token, head]."""
    index, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + index)
    context = tl.load(context_lens + row)
    first = _first_slot(context, WINDOW, TILE)
    used = tl.cdiv(context - first, _part_length(context, first, TILE, PARTS))
    token = tl.load(query_start + row).to(tl.int64)
    part = tl.arange(0, PARTS)
    lane = tl.arange(0, HEAD_PAD)
    base = (index.to(tl.int64) * HEADS + head) * PARTS + part
    best = tl.load(sums + base * 2, mask=part < used, other=float("-inf"))
    total = tl.load(sums + base * 2 + 1, mask=part < used, other=0.0)
    share = tl.exp2(best - tl.max(best, 0))
    inside = (part < used)[:, None] & (lane < HEAD)[None, :]
    acc = tl.load(partial + base[:, None] * HEAD + lane[None, :], mask=inside, other=0.0)
    mixed = tl.sum(acc * share[:, None], 0) / tl.sum(total * share, 0)
    tl.store(out + (token * HEADS + head) * HEAD + lane, mixed.to(out.dtype.element_ty), mask=lane < HEAD)


@triton.jit
def prefill_tiles(
    query, key, value, tables, meta, tile_rows, tile_starts, query_start, positions, context_lens, out, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, TILE: tl.constexpr, LINES: tl.constexpr, RECTANGLE: tl.constexpr,
):  # fmt: skip
    """A tile holds LINES // GROUP query tokens of one row. RECTANGLE reads every slot of the row's context and masks what no
    query of the tile sees, which may never have been written."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows + tile)
    start = tl.load(tile_starts + tile)
    limit = tl.load(query_start + row + 1)
    table = tables + row.to(tl.int64) * tl.load(meta)
    line = tl.arange(0, LINES)
    lane = tl.arange(0, HEAD_PAD)
    column = tl.arange(0, TILE)
    token = start + line // GROUP
    real = (line < LINES // GROUP * GROUP) & (token < limit)
    position = tl.load(positions + token, mask=real, other=0)
    at_query = (token.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + line % GROUP) * HEAD
    inside = real[:, None] & (lane < HEAD)[None, :]
    q = tl.load(query + at_query[:, None] + lane[None, :], mask=inside, other=0.0)
    top = tl.max(tl.where(real, position, 0), 0)
    begin = top * 0
    end = top + 1
    if RECTANGLE:
        end = tl.load(context_lens + row)
    elif WINDOW > 0:
        begin = tl.maximum(tl.min(tl.where(real, position, top), 0) + 1 - WINDOW, 0) // TILE * TILE
    best = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, HEAD_PAD], tl.float32)
    for at in range(begin, end, TILE):
        slot = at + column
        held = slot < end
        block = tl.load(table + slot // BLOCK, mask=held, other=0).to(tl.int64)
        place = ((block * KV_HEADS + kv_head) * BLOCK + slot % BLOCK) * HEAD
        k = tl.load(key + place[None, :] + lane[:, None], mask=held[None, :] & (lane < HEAD)[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        seen = slot[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (slot[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(scores - anchor[:, None])
        fade = tl.exp2(best - anchor)
        v = tl.load(value + place[:, None] + lane[None, :], mask=held[:, None] & (lane < HEAD)[None, :], other=0.0)
        if RECTANGLE:
            v = tl.where((slot <= top)[:, None], v, 0.0)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(weight, 1)
        best = higher
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + at_query[:, None] + lane[None, :], acc.to(out.dtype.element_ty), mask=inside)
