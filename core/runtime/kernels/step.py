"""A whole step in one call: all layers, all rows, decode tokens and prompt chunks alike.

    embed, norm | qkv | rotate, write KV | attend | o + residual | norm | gate, up, silu | down + residual | norm ... head
                a bar is a barrier of the team; within a phase panels, rows or items are dealt to the threads

Activations stay float32 between the operations, so a bfloat16 model rounds less often than the plain path; inputs of
products are rounded to bfloat16 only where the processor multiplies them so (PAIRS). Nothing
crosses into Python between the phases, and the GIL is handed over once a step.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from core.runtime.kernels.attention import attend
from core.runtime.kernels.compiler import part, step_function
from core.runtime.kernels.description import COUNTER_BYTES, COUNTERS_A_LAYER, LAYER_WORDS, LayerWord, Word
from core.runtime.kernels.gemm import GRAIN, first_read, gemm, gemm_silu_mul
from core.runtime.kernels.memory import fetch_add, load_f32, load_i32, load_i64, word
from core.runtime.kernels.microkernel import STORE
from core.runtime.kernels.team import barrier
from core.runtime.kernels.tiles import FLOAT_BYTES
from core.runtime.kernels.vector import add, narrow, rms_norm, rotate, widen


@part
def _room(d: int, thread: int) -> int:
    """Where the thread unpacks coded panels; 0 where weights are not coded."""
    room: int = word(d, Word.ROOM) + thread * word(d, Word.ROOM_BYTES)
    return room


@part
def _norm_row(products: int, d: int, source: int, target: int, weight: int) -> None:
    hidden = word(d, Word.HIDDEN)
    rms_norm(products, source, weight, target, hidden, hidden, load_f32(word(d, Word.EPSILON_AND_FACTOR)))


@part
def _norm_rows(fns: int, d: int, thread: int, weight: int, bias: int) -> None:
    """normed = rms_norm(x), rows dealt in turn; a bias (0 for none) is added to x first."""
    hidden, products = word(d, Word.HIDDEN), word(d, Word.PRODUCT_FUNCTIONS)
    for row in range(thread, word(d, Word.TOKENS), word(d, Word.THREADS)):
        source = word(d, Word.X) + row * hidden * FLOAT_BYTES
        if bias != 0:
            add(fns, bias, source, hidden)
        _norm_row(products, d, source, word(d, Word.NORMED) + row * hidden * word(d, Word.INPUT_BYTES), weight)


@part
def _embed(fns: int, d: int, thread: int) -> None:
    """x = rows of the embedding table."""
    hidden = word(d, Word.HIDDEN)
    for row in range(thread, word(d, Word.TOKENS), word(d, Word.THREADS)):
        token = load_i32(word(d, Word.TOKEN_IDS) + 4 * row)
        source = word(d, Word.EMBEDDING) + token * word(d, Word.EMBEDDING_ROW_BYTES)
        widen(fns, source, word(d, Word.X) + row * hidden * FLOAT_BYTES, hidden)


@part
def _heads(fns: int, d: int, first: int, count: int, position: int, norm: int) -> None:
    """Normalise (where norm is not 0) and turn `count` heads that lie side by side."""
    head_dim = word(d, Word.HEAD_DIM)
    half = head_dim // 2
    angles = position * half * FLOAT_BYTES
    for h in range(count):
        head = first + h * head_dim * FLOAT_BYTES
        if norm != 0:
            rms_norm(fns, head, norm, head, head_dim, head_dim, load_f32(word(d, Word.EPSILON_AND_FACTOR)))
        rotate(fns, head, word(d, Word.COS) + angles, word(d, Word.SIN) + angles, half)


@part
def _rotate_and_write(fns: int, d: int, layer: int, thread: int) -> None:
    """Bias, head norms, rotary turn of q and k in place; k and v into their slots."""
    heads, kv_heads, head_dim = word(d, Word.HEADS), word(d, Word.KV_HEADS), word(d, Word.HEAD_DIM)
    head_floats = head_dim * FLOAT_BYTES
    block_size, bias = word(d, Word.BLOCK_SIZE), word(layer, LayerWord.QKV_BIAS)
    for row in range(thread, word(d, Word.TOKENS), word(d, Word.THREADS)):
        q = word(d, Word.QKV) + row * word(d, Word.QKV_STRIDE) * FLOAT_BYTES
        if bias != 0:
            add(fns, bias, q, word(d, Word.QKV_STRIDE))
        k = q + heads * head_floats
        v = k + kv_heads * head_floats
        position = load_i32(word(d, Word.POSITIONS) + 4 * row)
        _heads(fns, d, q, heads, position, word(layer, LayerWord.Q_NORM))
        _heads(fns, d, k, kv_heads, position, word(layer, LayerWord.K_NORM))
        slot = load_i64(word(d, Word.SLOT_MAPPING) + 8 * row)
        place = (slot // block_size) * word(d, Word.BLOCK_BYTES) + (slot % block_size) * word(d, Word.ROW_BYTES)
        for h in range(kv_heads):
            narrow(fns, k + h * head_floats, word(layer, LayerWord.KEYS) + place, head_dim)
            narrow(fns, v + h * head_floats, word(layer, LayerWord.VALUES) + place, head_dim)
            place += word(d, Word.HEAD_BYTES)


@part
def _attend_items(fns: int, d: int, layer: int, thread: int, counter: int) -> None:
    """Units (an item and HEADS_A_UNIT of its KV heads), taken one by one; the caller has put the long items first."""
    heads, kv_heads, head_dim = word(d, Word.HEADS), word(d, Word.KV_HEADS), word(d, Word.HEAD_DIM)
    group, stride = heads // kv_heads, word(d, Word.QKV_STRIDE)
    factor = load_f32(word(d, Word.EPSILON_AND_FACTOR) + 4)
    scratch = word(d, Word.SCRATCH) + thread * word(d, Word.SCRATCH_BYTES)
    together = word(d, Word.HEADS_A_UNIT)
    parts = (kv_heads + together - 1) // together
    while True:
        unit = fetch_add(counter, 1)
        if unit >= word(d, Word.ITEMS) * parts:
            return
        item, kv = unit // parts, unit % parts * together
        row = load_i32(word(d, Word.ITEM_ROW) + 4 * item)
        first = load_i32(word(d, Word.ITEM_FIRST) + 4 * item)
        tokens = load_i32(word(d, Word.ITEM_TOKENS) + 4 * item)
        place = kv * group * head_dim * FLOAT_BYTES
        context = load_i32(word(d, Word.CONTEXT_LENS) + 4 * row) if word(d, Word.READ_ALL) != 0 else 0
        attend(
            fns, word(d, Word.ATTENTION_FUNCTIONS), word(d, Word.ATTENTION_INPUT_BYTES),
            word(d, Word.QKV) + first * stride * FLOAT_BYTES + place, stride, word(d, Word.POSITIONS) + 4 * first, tokens,
            min(together, kv_heads - kv), group, head_dim, word(layer, LayerWord.KEYS) + kv * word(d, Word.HEAD_BYTES),
            word(layer, LayerWord.VALUES) + kv * word(d, Word.HEAD_BYTES),
            word(d, Word.BLOCK_TABLES) + row * word(d, Word.TABLE_BYTES), word(d, Word.BLOCK_SIZE), word(d, Word.BLOCK_BYTES),
            word(d, Word.HEAD_BYTES), word(d, Word.ROW_BYTES), context, word(d, Word.WINDOW), factor,
            word(d, Word.ATTENDED) + (first * heads + kv * group) * head_dim * word(d, Word.INPUT_BYTES), heads * head_dim,
            scratch, word(d, Word.PRODUCT_FUNCTIONS), word(d, Word.INPUT_BYTES),
        )  # fmt: skip


@part
def _layer(fns: int, d: int, layer: int, thread: int, counters: int, after: int) -> None:
    """From normed = input norm of x to x with both residuals added; `after` is what comes next, see `gemm`."""
    products, size = word(d, Word.PRODUCT_FUNCTIONS), word(d, Word.INPUT_BYTES)
    threads, control, tokens = word(d, Word.THREADS), word(d, Word.CONTROL), word(d, Word.TOKENS)
    hidden, intermediate = word(d, Word.HIDDEN), word(d, Word.INTERMEDIATE)
    q_size = word(d, Word.HEADS) * word(d, Word.HEAD_DIM)
    x, normed, qkv, attended = word(d, Word.X), word(d, Word.NORMED), word(d, Word.QKV), word(d, Word.ATTENDED)
    activated, width = word(d, Word.ACTIVATED), word(d, Word.ACTIVATED_STRIDE)
    scratch, room = word(d, Word.SCRATCH) + thread * word(d, Word.SCRATCH_BYTES), _room(d, thread)
    residual = word(d, Word.RESIDUAL_MODE)
    gemm(products, size, normed, hidden, tokens, word(layer, LayerWord.QKV), word(d, Word.QKV_PANEL_BYTES), hidden,
         word(d, Word.QKV_PANELS), qkv, word(d, Word.QKV_STRIDE), STORE, counters, thread, threads, room, 0, 0,
         first_read(word(layer, LayerWord.OUTPUT), word(d, Word.O_PANEL_BYTES), thread, GRAIN))  # fmt: skip
    barrier(control, threads)
    _rotate_and_write(fns, d, layer, thread)
    barrier(control, threads)
    _attend_items(fns, d, layer, thread, counters + COUNTER_BYTES)
    barrier(control, threads)
    gemm(products, size, attended, q_size, tokens, word(layer, LayerWord.OUTPUT), word(d, Word.O_PANEL_BYTES), q_size,
         word(d, Word.O_PANELS), x, hidden, residual, counters + 2 * COUNTER_BYTES, thread, threads, room, 0, 0,
         first_read(word(layer, LayerWord.GATE_UP), word(d, Word.GATE_UP_PANEL_BYTES), thread, 2 * GRAIN))  # fmt: skip
    barrier(control, threads)
    _norm_rows(fns, d, thread, word(layer, LayerWord.POST_NORM), word(layer, LayerWord.OUTPUT_BIAS))
    barrier(control, threads)
    gemm_silu_mul(products, size, normed, hidden, tokens, word(layer, LayerWord.GATE_UP), word(d, Word.GATE_UP_PANEL_BYTES),
                  hidden, word(d, Word.GATE_UP_PAIRS), activated, width, scratch, counters + 3 * COUNTER_BYTES, thread, threads,
                  room, first_read(word(layer, LayerWord.DOWN), word(d, Word.DOWN_PANEL_BYTES), thread, GRAIN))  # fmt: skip
    barrier(control, threads)
    gemm(products, size, activated, width, tokens, word(layer, LayerWord.DOWN), word(d, Word.DOWN_PANEL_BYTES), intermediate,
         word(d, Word.DOWN_PANELS), x, hidden, residual, counters + 4 * COUNTER_BYTES, thread, threads, room, 0, 0,
         after)  # fmt: skip
    barrier(control, threads)


@part
def _logits(d: int, thread: int, counter: int, after: int) -> None:
    """Final norm and head of the wanted tokens only, and the largest logit of each; after: see `gemm`."""
    products, size = word(d, Word.PRODUCT_FUNCTIONS), word(d, Word.INPUT_BYTES)
    threads, hidden, count = word(d, Word.THREADS), word(d, Word.HIDDEN), word(d, Word.LOGITS_COUNT)
    for i in range(thread, count, threads):
        source = word(d, Word.X) + load_i64(word(d, Word.LOGITS_INDICES) + 8 * i) * hidden * FLOAT_BYTES
        _norm_row(products, d, source, word(d, Word.NORMED) + i * hidden * size, word(d, Word.FINAL_NORM))
    barrier(word(d, Word.CONTROL), threads)
    gemm(products, size, word(d, Word.NORMED), hidden, count, word(d, Word.HEAD), word(d, Word.HEAD_PANEL_BYTES), hidden,
         word(d, Word.HEAD_PANELS), word(d, Word.LOGITS), word(d, Word.LOGITS_STRIDE), STORE, counter, thread, threads,
         _room(d, thread), word(d, Word.BEST) + thread * word(d, Word.BEST_THREAD_BYTES), word(d, Word.VOCAB),
         after)  # fmt: skip


def _run(d: int, thread: int) -> None:
    """The whole step on one thread of the team; d is the address of the description."""
    threads, control, counters = word(d, Word.THREADS), word(d, Word.CONTROL), word(d, Word.COUNTERS)
    fns, table, layers = word(d, Word.FUNCTIONS), word(d, Word.LAYER_TABLE), word(d, Word.LAYERS)
    start = first_read(word(table, LayerWord.QKV), word(d, Word.QKV_PANEL_BYTES), thread, GRAIN)
    _embed(fns, d, thread)
    for index in range(layers):
        layer = table + index * 8 * LAYER_WORDS
        _norm_rows(fns, d, thread, word(layer, LayerWord.INPUT_NORM), 0)
        barrier(control, threads)
        if index + 1 < layers:
            after = first_read(word(layer + 8 * LAYER_WORDS, LayerWord.QKV), word(d, Word.QKV_PANEL_BYTES), thread, GRAIN)
        elif word(d, Word.LOGITS_COUNT) != 0:
            after = first_read(word(d, Word.HEAD), word(d, Word.HEAD_PANEL_BYTES), thread, GRAIN)
        else:
            after = start
        _layer(fns, d, layer, thread, counters, after)
        counters += COUNTERS_A_LAYER * COUNTER_BYTES
    if word(d, Word.LOGITS_COUNT) != 0:
        _logits(d, thread, counters, start)


@cache
def compiled_step() -> Any:
    """Compile the step (or load it from the cache); the result goes to `Team.run`. One step serves every model."""
    return step_function(_run)
