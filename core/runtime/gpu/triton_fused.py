"""What lies between the matrix products, fused in Triton: head norm + rotation + cache write, residual + norm, gate.

Each rounds to the model's dtype where the plain path does, so that both differ by the order of additions only.
"""

import triton
import triton.language as tl


@triton.jit
def rope_and_write(
    qkv, query, key, value, positions, slots, cos, sin, q_norm, k_norm, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Program (token, head): a query head goes to `query`, a key or value head to its slot of the cache.

    qkv [tokens, (HEADS + 2 KV_HEADS) * 2 HALF], query [tokens, HEADS * 2 HALF], cos and sin [positions, HALF] float32.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, HALF_PAD)
    inside = lane < HALF
    source = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF + lane
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    kind = query.dtype.element_ty
    if head < HEADS + KV_HEADS:
        if NORM:
            scale = 1.0 / tl.sqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + epsilon)
            gain = q_norm
            if head >= HEADS:
                gain = k_norm
            first = (first * scale).to(kind).to(tl.float32) * tl.load(gain + lane, mask=inside, other=0.0).to(tl.float32)
            second = (second * scale).to(kind).to(tl.float32) * tl.load(gain + HALF + lane, mask=inside, other=0.0).to(tl.float32)
            first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        angle = tl.load(positions + token).to(tl.int64) * HALF + lane
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        first, second = first * c - second * s, second * c + first * s
    if head < HEADS:
        target = query + (token * HEADS + head) * 2 * HALF + lane
        tl.store(target, first.to(kind), mask=inside)
        tl.store(target + HALF, second.to(kind), mask=inside)
    else:
        slot = tl.load(slots + token)
        kv_head = (head - HEADS) % KV_HEADS
        place = ((slot // BLOCK * KV_HEADS + kv_head) * BLOCK + slot % BLOCK) * 2 * HALF + lane
        if head < HEADS + KV_HEADS:
            tl.store(key + place, first.to(kind), mask=inside)
            tl.store(key + place + HALF, second.to(kind), mask=inside)
        else:
            tl.store(value + place, first.to(kind), mask=inside)
            tl.store(value + place + HALF, second.to(kind), mask=inside)


@triton.jit
def add_norm(x, residual, weight, total, out, epsilon, SIZE: tl.constexpr, SIZE_PAD: tl.constexpr, ADD: tl.constexpr):
    """Program (row): total = x + residual (with ADD), out = total / sqrt(mean(total^2) + epsilon) * weight."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, SIZE_PAD)
    inside = lane < SIZE
    kind = out.dtype.element_ty
    wide = tl.load(x + row * SIZE + lane, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        summed = (wide + tl.load(residual + row * SIZE + lane, mask=inside, other=0.0).to(tl.float32)).to(kind)
        tl.store(total + row * SIZE + lane, summed, mask=inside)
        wide = summed.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    normed = (wide * scale).to(kind).to(tl.float32) * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + lane, normed.to(kind), mask=inside)


@triton.jit
def gate(gate_up, out, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Program (row, tile): out [rows, SIZE] = silu(gate) * up of gate_up [rows, 2 SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = lane < SIZE
    kind = out.dtype.element_ty
    g = tl.load(gate_up + row * 2 * SIZE + lane, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(gate_up + row * 2 * SIZE + SIZE + lane, mask=inside, other=0.0).to(tl.float32)
    activated = (g / (1.0 + tl.exp(-g))).to(kind).to(tl.float32)
    tl.store(out + row * SIZE + lane, (activated * u).to(kind), mask=inside)
