"""The register tile: out[m rows, p * 16 columns] = x[m rows, K] times p panels of packed weights.

    x                    float32; bfloat16 for the products of PAIRS

    panel of bfloat16    [K / 2][16 columns][2]   one 32-bit lane holds k (low half) and k + 1 of a column
    panel of float32     [K][16 columns]
    panel of int8        [16 scales, float32] [K][16 columns]      a column's sum is multiplied by its scale at the end
    listed rows          K rows of a cache wherever they lie: a list of addresses, 16 columns taken at a time

Widening bfloat16 costs one shift for even k and one mask for odd k; both run beside the multiply-adds. Each output
is ONE chain of fused multiply-adds over k = 0, 1, 2, ... whatever m and p are, so a row's result does not depend on
the rows that share its tile. Six rows by 16 columns fill the 16 registers of AVX2 (12 sums, 2 weights, 1 broadcast).

PAIRS multiplies bfloat16 as it is, two k an instruction (AVX512_BF16): the chain is over pairs of k. Twelve rows by
two panels fill the 32 registers of AVX-512 (24 sums), and a broadcast serves two products; with one panel the loads
of the broadcasts are the limit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from core.runtime.kernels.emit import (
    FLOAT,
    HALVES,
    I8,
    I32,
    I64,
    INT8_PAIRS,
    LANES,
    MULTIPLY_PAIRS,
    PAIRS,
    VF,
    VI,
    VOID,
    Emitter,
    family,
    kernel,
)
from core.runtime.kernels.tiles import LINE_BYTES

MAX_ROWS = 6
MAX_PAIR_ROWS = 12
"""Rows of a tile of two panels."""

INT8_COVERED = 4
"""k of an int8 panel in one cache line."""

SCALES_BYTES = 4 * LANES

STORE, ADD, CONTINUE = 0, 1, 2
"""What becomes of `out`: overwritten, added to after the sum, or the start of the sum."""


def _panel_weights(e: Emitter, element: str, address: Any) -> tuple[Any, ...]:
    """The next weights of one panel: a vector of float32 for each k that the load covers, or one for each pair of k."""
    if element == "f32":
        return (e.load(address),)
    if element == PAIRS:
        return (e.load(address, VI),)
    if element in ("int8", INT8_PAIRS):
        kind = ir.VectorType(I8, LANES)
        raws = [e.load(e.add(address, LANES * i), kind, 1) for i in range(INT8_COVERED)]
        wide = tuple(e.b.sitofp(e.b.sext(raw, VI), VF) for raw in raws)
        if element == "int8":
            return wide
        bits = [e.b.bitcast(w, VI) for w in wide]  # of whole numbers below 2^8: the low half is zero
        return tuple(e.b.or_(e.b.lshr(even, e.ints(16)), odd) for even, odd in zip(bits[::2], bits[1::2], strict=True))
    raw = e.load(address, VI)
    even = e.b.bitcast(e.b.shl(raw, e.ints(16)), VF)
    odd = e.b.bitcast(e.b.and_(raw, e.ints(0xFFFF0000)), VF)
    return even, odd


class Tile:
    """The sums of a tile: where they start, how they grow, where they go."""

    def __init__(self, e: Emitter, rows: int, panels: int, x: Any, ldx: Any, out: Any, ldo: Any, *, pairs: bool = False) -> None:
        self.e, self.rows, self.panels, self.pairs = e, rows, panels, pairs
        kind, size = (I32, 2) if pairs else (FLOAT, 4)
        self.x = [e.at(e.add(x, e.mul(ldx, size * r)), kind) for r in range(rows)]
        self.targets = [e.add(e.add(out, e.mul(ldo, 4 * r)), 4 * LANES * j) for r in range(rows) for j in range(panels)]

    def start(self, mode: Any) -> list[Any]:
        """Zeros, or what `out` holds in mode CONTINUE."""
        e, b = self.e, self.e.b
        entry = b.block
        resume, ready = (e.function.append_basic_block(n) for n in ("resume", "ready"))
        b.cbranch(b.icmp_signed("==", mode, e.const(CONTINUE)), resume, ready)
        b.position_at_end(resume)
        old = [e.load(t) for t in self.targets]
        b.branch(ready)
        b.position_at_end(ready)
        return [self._either((ir.Constant(VF, None), entry), (value, resume)) for value in old]

    def grow(self, sums: list[Any], k: Any, weights: list[Any]) -> list[Any]:
        """sums + x[:, k] weights; of pairs, the k-th pair."""
        b = self.e.b
        multiply = self.e.dot_pairs if self.pairs else self.e.fma
        for r in range(self.rows):
            value = self.e.splat(b.load(b.gep(self.x[r], [k]), align=2 if self.pairs else 4))
            for j in range(self.panels):
                cell = r * self.panels + j
                sums[cell] = multiply(value, weights[j], sums[cell])
        return sums

    def finish(self, sums: list[Any], mode: Any) -> None:
        """Store, adding to `out` first in mode ADD."""
        e, b = self.e, self.e.b
        finished = b.block
        add, store = (e.function.append_basic_block(n) for n in ("add", "store"))
        b.cbranch(b.icmp_signed("==", mode, e.const(ADD)), add, store)
        b.position_at_end(add)
        added = [b.fadd(e.load(t), s) for t, s in zip(self.targets, sums, strict=True)]
        b.branch(store)
        b.position_at_end(store)
        final = [self._either((plain, finished), (more, add)) for plain, more in zip(sums, added, strict=True)]
        for target, value in zip(self.targets, final, strict=True):
            e.store(value, target)

    def _either(self, *incoming: tuple[Any, Any]) -> Any:
        phi = self.e.b.phi(VF)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return phi


def _fetch(e: Emitter, streams: list[Any], place: Any, left: Any, every: Any) -> tuple[Any, Any]:
    """Once in `every` calls ask for the line at `place` of each stream; returns the next place and the calls left to it.

    Every request for a line costs the tile time, also for one that is on its way already, so none is made twice.
    """
    b = e.b
    here = b.block
    due, go = (e.function.append_basic_block(n) for n in ("due", "go"))
    fewer = e.add(left, -1)
    b.cbranch(b.icmp_signed("==", left, e.const(0)), due, go)
    b.position_at_end(due)
    for distance in streams:
        e.prefetch(e.add(place, distance))
    further, again = e.add(place, LINE_BYTES), e.add(every, -1)
    b.branch(go)
    b.position_at_end(go)
    places, counts = b.phi(I64), b.phi(I64)
    for phi, plain, after in ((places, place, further), (counts, fewer, again)):
        phi.add_incoming(plain, here)
        phi.add_incoming(after, due)
    return places, counts


def _packed(rows: int, panels: int, *, both: bool = False) -> Any:
    """Body of a tile over packed panels; meanwhile lines are fetched from `ahead` on, one for each panel in `every` loads.

    What is fetched for the next panel begins `ahead_bytes` further. A panel's load is a line, so a panel is fetched with
    every = 1, or with every = n by n tiles; 0 fetches nothing.
    both: the tile of two panels, for PAIRS only. No CONTINUE with int8.
    """

    def body(
        e: Emitter, element: str, x: Any, ldx: Any, w: Any, panel_bytes: Any, k_bytes: Any, k: Any, out: Any, ldo: Any, mode: Any,
        ahead: Any, ahead_bytes: Any, every: Any,
    ) -> None:  # fmt: skip
        pairs = element in MULTIPLY_PAIRS
        if both and not pairs:
            e.call("llvm.trap", VOID)
            return
        tile = Tile(e, rows, panels, x, ldx, out, ldo, pairs=pairs)
        starts = [e.add(w, e.mul(panel_bytes, j)) for j in range(panels)]
        streams = [e.mul(ahead_bytes, j) for j in range(panels)]
        covered = {"f32": 1, "bf16": 2, PAIRS: 2}.get(element, INT8_COVERED)
        scales = [e.load(start) for start in starts] if covered == INT8_COVERED else []
        if scales:
            starts = [e.add(start, SCALES_BYTES) for start in starts]

        def advance(index: Any, state: list[Any]) -> list[Any]:
            *sums, place, left = state
            fetched = _fetch(e, streams, place, left, every)
            i = e.b.lshr(index, e.const(covered.bit_length() - 1))
            loaded = [_panel_weights(e, element, e.add(start, e.mul(i, k_bytes))) for start in starts]
            base = e.b.lshr(index, e.const(1)) if pairs else index
            for s in range(len(loaded[0])):
                sums = tile.grow(sums, e.add(base, s), [w[s] for w in loaded])
            return [*sums, *fetched]

        never = e.b.select(e.b.icmp_signed(">", every, e.const(0)), e.const(0), e.const(-1))
        *sums, _, _ = e.loop(k, covered, [*tile.start(mode), ahead, never], advance)
        if scales:
            sums = [e.b.fmul(value, scales[cell % panels]) for cell, value in enumerate(sums)]
        tile.finish(sums, mode)

    return body


def _listed(rows: int, panels: int) -> Any:
    """Body of a tile over rows given by address: weight row k starts at list[k] + shift.

    PAIRS takes two rows at a time; after an odd number the last row stands in for the missing one, and its x must be 0.
    """

    def body(
        e: Emitter, element: str, x: Any, ldx: Any, addresses: Any, shift: Any, k: Any, out: Any, ldo: Any, mode: Any
    ) -> None:
        if panels > 1 and element != PAIRS:
            e.call("llvm.trap", VOID)
            return
        tile = Tile(e, rows, panels, x, ldx, out, ldo, pairs=element == PAIRS)
        size = 4 if element == "f32" else 2

        def row_at(index: Any) -> Any:
            return e.add(e.load(e.add(addresses, e.mul(index, 8)), I64, 8), shift)

        def advance_pair(index: Any, sums: list[Any]) -> list[Any]:
            following, last = e.add(index, 1), e.add(k, -1)
            second = e.b.select(e.b.icmp_signed("<", following, k), following, last)
            starts = (row_at(index), row_at(second))
            places = [[e.add(start, LANES * size * j) for start in starts] for j in range(panels)]
            weights = [e.interleave(*(e.load(p, HALVES, 2) for p in both)) for both in places]
            return tile.grow(sums, e.b.lshr(index, e.const(1)), weights)

        def advance(index: Any, sums: list[Any]) -> list[Any]:
            row = row_at(index)
            places = [e.add(row, LANES * size * j) for j in range(panels)]
            return tile.grow(sums, index, [e.load(p) if size == 4 else e.widen_bf16(p) for p in places])

        pairs = element == PAIRS
        tile.finish(e.loop(k, 2 if pairs else 1, tile.start(mode), advance_pair if pairs else advance), mode)

    return body


tile = family("tile", "a" * 12, "v", [_packed(rows, 1) for rows in range(1, MAX_ROWS + 1)])
"""tile(table, rows - 1, x, ldx, w, panel_bytes, k_bytes, k, out, ldo, mode, ahead, ahead_bytes, every): one panel."""

tile_pair = family("tile_pair", "a" * 12, "v", [_packed(rows, 2, both=True) for rows in range(1, MAX_PAIR_ROWS + 1)])
"""tile_pair(table, rows - 1, x, ldx, w, panel_bytes, ...): two panels that lie panel_bytes apart; PAIRS only."""

tile_1x4 = kernel("tile_1x4", "a" * 12, "v", _packed(1, 4))
"""One row leaves most registers free: several panels at once keep the multiply-adds busy."""

tile_listed = family("tile_listed", "a" * 8, "v", [_listed(rows, 1) for rows in range(1, MAX_ROWS + 1)])
"""tile_listed(table, rows - 1, x, ldx, addresses, shift, k, out, ldo, mode): 16 columns."""

tile_listed_4 = family("tile_listed_4", "a" * 8, "v", [_listed(rows, 4) for rows in range(1, MAX_ROWS + 1)])
"""The same for 64 columns at once; PAIRS only."""
