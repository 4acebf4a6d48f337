"""The small vector loops of a layer: norm, rotary turn, softmax, gated activation, conversions, a transpose.

What rms_norm, silu_mul, scale and exp_sum write is the input of a product: bfloat16 in the library of PAIRS, else float32.

exp(x) = 2^n * p(r) with n = round(x / ln 2), r = x - n ln 2, p a polynomial of degree 6 (relative error below 2e-7);
values below -87.3 give exactly 0, so a masked score of minus infinity weighs nothing.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from core.runtime.kernels import microkernel  # noqa: F401  a kernel's place in the table is its order of registration
from core.runtime.kernels.emit import FLOAT, I32, I64, LANES, VF, VI, Emitter, kernel

_STEP = LANES
_BYTES = 4 * LANES
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to a whole number, which then stands in the low bits
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
_LOWEST = -87.3
_HIGHEST = 88.3


def _exp(e: Emitter, x: Any) -> Any:
    b = e.b
    low = b.fcmp_ordered("<", x, e.vector(_LOWEST))
    x = b.select(low, e.vector(_LOWEST), x)
    x = b.select(b.fcmp_ordered(">", x, e.vector(_HIGHEST)), e.vector(_HIGHEST), x)
    shifted = e.fma(x, e.vector(1.0 / math.log(2.0)), e.vector(_MAGIC))
    n = b.fsub(shifted, e.vector(_MAGIC))
    r = e.fma(n, e.vector(-_LN2_HIGH), x)
    r = e.fma(n, e.vector(-_LN2_LOW), r)
    p = e.vector(1.0 / 720)
    for term in (1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0):
        p = e.fma(p, r, e.vector(term))
    bits = b.add(b.bitcast(p, VI), b.shl(b.bitcast(shifted, VI), e.ints(23)))
    return b.select(low, e.vector(0.0), b.bitcast(bits, VF))


def _rms_norm(e: Emitter, element: str, x: Any, weight: Any, out: Any, padded: Any, n: Any, eps: Any) -> None:
    b = e.b

    def square(i: Any, state: list[Any]) -> list[Any]:
        v = e.load(e.add(x, e.mul(i, 4)))
        return [e.fma(v, v, state[0])]

    total = e.reduce(e.loop(padded, _STEP, [e.vector(0.0)], square)[0], b.fadd)
    mean = b.fdiv(total, b.sitofp(n, FLOAT))
    root = e.call("llvm.sqrt.f32", FLOAT, b.fadd(mean, eps))
    scale = e.splat(b.fdiv(ir.Constant(FLOAT, 1.0), root))

    def write(i: Any, state: list[Any]) -> list[Any]:
        offset = e.mul(i, 4)
        value = b.fmul(b.fmul(e.load(e.add(x, offset)), scale), e.load(e.add(weight, offset)))
        e.store_input(element, value, out, i)
        return state

    e.loop(padded, _STEP, [], write)


def _rotate(e: Emitter, element: str, x: Any, cos: Any, sin: Any, half: Any) -> None:
    """Turn the pairs (i, i + half) of one head in place; 8 pairs at a time."""
    b, narrow = e.b, ir.VectorType(FLOAT, 8)

    def turn(i: Any, state: list[Any]) -> list[Any]:
        low_at, high_at = e.add(x, e.mul(i, 4)), e.add(x, e.mul(b.add(i, half), 4))
        low, high = e.load(low_at, narrow), e.load(high_at, narrow)
        c, s = e.load(e.add(cos, e.mul(i, 4)), narrow), e.load(e.add(sin, e.mul(i, 4)), narrow)
        e.store(b.fsub(b.fmul(low, c), b.fmul(high, s)), low_at)
        e.store(b.fadd(b.fmul(high, c), b.fmul(low, s)), high_at)
        return state

    e.loop(half, 8, [], turn)


def _narrow(e: Emitter, element: str, source: Any, target: Any, n: Any) -> None:
    """float32 to the cache's element type."""
    size = 2 if element == "bf16" else 4

    def move(i: Any, state: list[Any]) -> list[Any]:
        value = e.load(e.add(source, e.mul(i, 4)))
        e.store(e.narrow_bf16(value) if size == 2 else value, e.add(target, e.mul(i, size)), align=size)
        return state

    e.loop(n, _STEP, [], move)


def _widen(e: Emitter, element: str, source: Any, target: Any, n: Any) -> None:
    """The weights' element type to float32."""

    def move(i: Any, state: list[Any]) -> list[Any]:
        value = e.load(e.add(source, e.mul(i, 4))) if element == "f32" else e.widen_bf16(e.add(source, e.mul(i, 2)))
        e.store(value, e.add(target, e.mul(i, 4)))
        return state

    e.loop(n, _STEP, [], move)


def _scale(e: Emitter, element: str, source: Any, target: Any, n: Any, factor: Any) -> None:
    wide = e.splat(factor)

    def move(i: Any, state: list[Any]) -> list[Any]:
        e.store_input(element, e.b.fmul(e.load(e.add(source, e.mul(i, 4))), wide), target, i)
        return state

    e.loop(n, _STEP, [], move)


def _add(e: Emitter, element: str, source: Any, target: Any, n: Any) -> None:
    def move(i: Any, state: list[Any]) -> list[Any]:
        offset = e.mul(i, 4)
        e.store(e.b.fadd(e.load(e.add(source, offset)), e.load(e.add(target, offset))), e.add(target, offset))
        return state

    e.loop(n, _STEP, [], move)


def _mask_max(e: Emitter, element: str, scores: Any, n: Any, low: Any, high: Any) -> Any:
    """Set the scores outside [low, high) to minus infinity, whatever they held; return the largest."""
    b = e.b
    lane = ir.Constant(VI, list(range(LANES)))
    first, last = e.splat(b.trunc(low, I32)), e.splat(b.trunc(high, I32))
    nothing = e.vector(-math.inf)

    def step(i: Any, state: list[Any]) -> list[Any]:
        address = e.add(scores, e.mul(i, 4))
        place = b.add(e.splat(b.trunc(i, I32)), lane)
        seen = b.and_(b.icmp_signed(">=", place, first), b.icmp_signed("<", place, last))
        value = b.select(seen, e.load(address), nothing)
        e.store(value, address)
        return [e.select_max(value, state[0])]

    return e.reduce(e.loop(n, _STEP, [nothing], step)[0], e.select_max)


def _exp_sum(e: Emitter, element: str, scores: Any, n: Any, largest: Any) -> Any:
    """scores = exp(scores - largest) in place; return their sum. PAIRS packs them as bfloat16 from the same start on."""
    b, wide = e.b, e.splat(largest)

    def step(i: Any, state: list[Any]) -> list[Any]:
        address = e.add(scores, e.mul(i, 4))
        value = _exp(e, b.fsub(e.load(address), wide))
        e.store_input(element, value, scores, i)
        return [b.fadd(state[0], value)]

    return e.reduce(e.loop(n, _STEP, [e.vector(0.0)], step)[0], b.fadd)


def _exp_one(e: Emitter, element: str, x: Any) -> Any:
    return e.b.extract_element(_exp(e, e.splat(x)), ir.Constant(I32, 0))


def _silu_mul(e: Emitter, element: str, gate: Any, stride: Any, rows: Any, out: Any, out_stride: Any) -> None:
    """out = gate / (1 + exp(-gate)) * up for rows of LANES gates and, right after them, LANES ups; strides in bytes."""
    b = e.b

    def step(row: Any, state: list[Any]) -> list[Any]:
        here = e.add(gate, e.mul(row, stride))
        g = e.load(here)
        bottom = b.fadd(e.vector(1.0), _exp(e, b.fsub(e.vector(-0.0), g)))
        value = b.fmul(b.fdiv(g, bottom), e.load(e.add(here, _BYTES)))
        e.store_input(element, value, e.add(out, e.mul(row, out_stride)), e.const(0))
        return state

    e.loop(rows, 1, [], step)


def _transpose(e: Emitter, element: str, rows: Any, shift: Any, words: Any, out: Any) -> None:
    """out[word][16] = word `word` of 16 rows that start at rows[r] + shift; words is a multiple of 8.

    A key row of bfloat16 read as 32-bit words gives the pair layout of a packed panel without any conversion.
    """
    b, kind = e.b, ir.VectorType(I32, 8)

    def shuffle(x: Any, y: Any, order: list[int]) -> Any:
        return b.shuffle_vector(x, y, ir.Constant(kind, order))

    addresses = [e.add(e.load(e.add(rows, 8 * r), I64, 8), shift) for r in range(LANES)]

    def step(i: Any, state: list[Any]) -> list[Any]:
        for part in range(2):
            v = [e.load(e.add(addresses[8 * part + r], e.mul(i, 4)), kind) for r in range(8)]
            t = []
            for r in range(0, 8, 2):
                t.append(shuffle(v[r], v[r + 1], [0, 8, 1, 9, 4, 12, 5, 13]))
                t.append(shuffle(v[r], v[r + 1], [2, 10, 3, 11, 6, 14, 7, 15]))
            u = []
            for r in (0, 4):
                for s in (0, 1):
                    u.append(shuffle(t[r + s], t[r + s + 2], [0, 1, 8, 9, 4, 5, 12, 13]))
                    u.append(shuffle(t[r + s], t[r + s + 2], [2, 3, 10, 11, 6, 7, 14, 15]))
            for c in range(4):
                e.store(shuffle(u[c], u[c + 4], [0, 1, 2, 3, 8, 9, 10, 11]), e.add(out, e.add(e.mul(e.add(i, c), 64), 32 * part)))
                high = shuffle(u[c], u[c + 4], [4, 5, 6, 7, 12, 13, 14, 15])
                e.store(high, e.add(out, e.add(e.mul(e.add(i, c + 4), 64), 32 * part)))
        return state

    e.loop(words, 8, [], step)


def _fill(e: Emitter, element: str, target: Any, n: Any, value: Any) -> None:
    wide = e.splat(value)

    def put(i: Any, state: list[Any]) -> list[Any]:
        e.store(wide, e.add(target, e.mul(i, 4)))
        return state

    e.loop(n, _STEP, [], put)


def _fetch_rows(e: Emitter, element: str, rows: Any, count: Any, shift: Any, n: Any, copies: Any, stride: Any) -> None:
    """Ask for the lines of n bytes from rows[r] + shift on, and of `copies` such pieces that are `stride` apart."""

    def row(r: Any, state: list[Any]) -> list[Any]:
        start = e.add(e.load(e.add(rows, e.mul(r, 8)), I64, 8), shift)

        def piece(c: Any, inner: list[Any]) -> list[Any]:
            place = e.add(start, e.b.mul(c, stride))

            def line(i: Any, innermost: list[Any]) -> list[Any]:
                e.prefetch(e.add(place, i))
                return innermost

            return e.loop(n, 64, inner, line)

        return e.loop(copies, 1, state, piece)

    e.loop(count, 1, [], row)


def _best_of(e: Emitter, element: str, source: Any, n: Any, first: Any, state: Any) -> None:
    """Take n values, numbered from `first` on, into a running maximum kept lane by lane.

    state: [LANES largest values, float32] [their numbers, int32] [0, or NaN once a value was not finite]
    The first of equal values stays, as long as the calls come in rising order.
    """
    b = e.b
    lane = ir.Constant(VI, list(range(LANES)))
    end, base = e.splat(b.trunc(n, I32)), e.splat(b.trunc(first, I32))
    places = [state, e.add(state, _BYTES), e.add(state, 2 * _BYTES)]

    def step(i: Any, carried: list[Any]) -> list[Any]:
        largest, number, broken = carried
        place = b.add(e.splat(b.trunc(i, I32)), lane)
        inside = b.icmp_signed("<", place, end)
        value = b.select(inside, e.load(e.add(source, e.mul(i, 4))), e.vector(-math.inf))
        better = b.fcmp_ordered(">", value, largest)
        finite = b.select(inside, value, e.vector(0.0))
        return [
            b.select(better, value, largest),
            b.select(better, b.add(base, place), number),
            e.fma(finite, e.vector(0.0), broken),
        ]

    before = [e.load(places[0]), e.load(places[1], VI), e.load(places[2])]
    for value, place in zip(e.loop(n, _STEP, before, step), places, strict=True):
        e.store(value, place)


def _read(e: Emitter, element: str, address: Any, n: Any, streams: Any, sink: Any) -> None:
    """Read n bytes as `streams` (a power of two up to 8) parallel runs, each a multiple of 256 bytes; fold into sink."""
    b = e.b
    run = b.udiv(n, streams)

    def block(i: Any, state: list[Any]) -> list[Any]:
        def stream(s: Any, inner: list[Any]) -> list[Any]:
            start = e.add(address, b.add(b.mul(s, run), i))
            ahead = e.add(i, 2048)
            e.prefetch(b.select(b.icmp_signed("<", ahead, run), e.add(start, 2048), start))
            return [b.xor(v, e.load(e.add(start, 64 * j), VI)) for j, v in enumerate(inner)]

        return e.loop(streams, 1, state, stream)

    sums = e.loop(run, 256, [e.ints(0)] * 4, block)
    folded = b.xor(b.xor(sums[0], sums[1]), b.xor(sums[2], sums[3]))
    e.store(folded, sink)


read = kernel("read", "aaaa", "v", _read)
rms_norm = kernel("rms_norm", "aaaaaf", "v", _rms_norm)
rotate = kernel("rotate", "aaaa", "v", _rotate)
narrow = kernel("narrow", "aaa", "v", _narrow)
widen = kernel("widen", "aaa", "v", _widen)
scale = kernel("scale", "aaaf", "v", _scale)
add = kernel("add", "aaa", "v", _add)
mask_max = kernel("mask_max", "aaaa", "f", _mask_max)
exp_sum = kernel("exp_sum", "aaf", "f", _exp_sum)
exp_one = kernel("exp_one", "f", "f", _exp_one)
silu_mul = kernel("silu_mul", "aaaaa", "v", _silu_mul)
transpose = kernel("transpose", "aaaa", "v", _transpose)
fill = kernel("fill", "aaf", "v", _fill)
fetch_rows = kernel("fetch_rows", "aaaaaa", "v", _fetch_rows)
best_of = kernel("best_of", "aaaa", "v", _best_of)
