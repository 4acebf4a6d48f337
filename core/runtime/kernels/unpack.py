"""Kernels that read coded panels, for the products of PAIRS only; see `coding` for the format.

    coded_pair    a tile of up to FEW_ROWS rows by two panels that decodes in registers
    unpack        units of a panel to plain lines, where that is not possible

A unit is three cache lines in and four plain lines out: two look-ups of 64 exponents, four interleavings of bytes, four
turns by one bit, some ten cycles. The sums are the chains of the plain tiles, in the same order.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from core.runtime.kernels import vector  # noqa: F401  a kernel's place in the table is its order of registration
from core.runtime.kernels.coding import (
    CODEBOOK,
    COUNT_AT,
    PATCH_BYTES,
    PATCHES_AT,
    PLACE_SHIFT,
    UNIT_BYTES,
    UNIT_K,
    UNIT_SHIFT,
)
from core.runtime.kernels.emit import I8, I16, I32, I64, PAIRS, VI, VOID, Emitter, family, kernel
from core.runtime.kernels.microkernel import Tile
from core.runtime.kernels.tiles import LINE_BYTES, PAIRS_BYTES

FEW_ROWS = 8
"""Rows of a step up to which coded panels are read: with more, decoding costs more time than its bytes save."""

UNIT_LINES = 4
_BYTES = ir.VectorType(I8, LINE_BYTES)
_WORDS = ir.VectorType(I16, LINE_BYTES // 2)


def _order(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def _lanes(first: int) -> list[int]:
    """Bytes of two vectors a, b as a0 b0 a1 b1 ... of eight bytes from `first` on of each 16-byte lane."""
    return [16 * lane + first + place + LINE_BYTES * which for lane in range(4) for place in range(8) for which in (0, 1)]


class _Decoder:
    """Plain lines of a panel's units."""

    def __init__(self, e: Emitter, panel: Any) -> None:
        self.e = e
        small = e.load(panel, ir.VectorType(I8, CODEBOOK), 1)
        spread = _order([i % CODEBOOK for i in range(LINE_BYTES)])
        self.book = e.b.shuffle_vector(small, ir.Constant(small.type, ir.Undefined), spread)

    def lines(self, unit: Any) -> list[Any]:
        """The four lines of the unit at an address."""
        e, b = self.e, self.e.b
        codes = e.load(unit, _BYTES, 1)
        parts = (
            b.and_(codes, ir.Constant(_BYTES, [CODEBOOK - 1] * LINE_BYTES)),
            b.lshr(codes, ir.Constant(_BYTES, [4] * LINE_BYTES)),
        )
        one = ir.Constant(_WORDS, [1] * (LINE_BYTES // 2))
        found = []
        for pair, part in enumerate(parts):
            exponents = e.call("llvm.x86.avx512.pshuf.b.512", _BYTES, self.book, part)
            rest = e.load(e.add(unit, LINE_BYTES * (1 + pair)), _BYTES, 1)
            for first in (0, 8):
                words = b.bitcast(b.shuffle_vector(rest, exponents, _order(_lanes(first))), _WORDS)
                found.append(e.call("llvm.fshr.v32i16", _WORDS, words, words, one))
        return found


def _unpack(e: Emitter, element: str, panel: Any, target: Any, header: Any, first: Any, units: Any) -> None:
    """target = the plain lines of `units` units from `first` on, patches included."""
    if element != PAIRS:
        e.call("llvm.trap", VOID)
        return
    b, decoder = e.b, _Decoder(e, panel)
    start = e.add(e.add(panel, header), e.mul(first, UNIT_BYTES))

    def unit(i: Any, state: list[Any]) -> list[Any]:
        there = e.add(target, e.mul(i, UNIT_LINES * LINE_BYTES))
        for line, words in enumerate(decoder.lines(e.add(start, e.mul(i, UNIT_BYTES)))):
            e.store(words, e.add(there, LINE_BYTES * line), align=2)
        return state

    e.loop(units, 1, [], unit)

    def patch(i: Any, state: list[Any]) -> list[Any]:
        entry = e.load(e.add(panel, e.add(e.mul(i, PATCH_BYTES), PATCHES_AT)), I64, 8)
        inside = b.icmp_unsigned("<", b.sub(b.lshr(entry, e.const(UNIT_SHIFT)), first), units)
        put, go = (e.function.append_basic_block(n) for n in ("put", "go"))
        b.cbranch(inside, put, go)
        b.position_at_end(put)
        place = b.sub(b.lshr(entry, e.const(PLACE_SHIFT)), b.mul(first, e.const(UNIT_LINES * LINE_BYTES // 2)))
        e.store(b.trunc(entry, I16), e.add(target, e.mul(place, 2)), align=2)
        b.branch(go)
        b.position_at_end(go)
        return state

    e.loop(e.load(e.add(panel, COUNT_AT), I64, 8), 1, [], patch)


def _coded_pair(rows: int) -> Any:
    """Body of a tile over `units` units of two coded panels from `first` on, none of which has a patch in them.

    Meanwhile what lies as far into the panels at `ahead` is fetched, with their headers if `first` is 0.
    """

    def body(
        e: Emitter, element: str, x: Any, ldx: Any, w: Any, panel_bytes: Any, header: Any, first: Any, units: Any, out: Any,
        ldo: Any, mode: Any, ahead: Any,
    ) -> None:  # fmt: skip
        if element != PAIRS:
            e.call("llvm.trap", VOID)
            return
        starts = [e.add(w, e.mul(panel_bytes, j)) for j in range(2)]
        coming = [e.add(ahead, e.mul(panel_bytes, j)) for j in range(2)]
        decoders = [_Decoder(e, start) for start in starts]
        tile = Tile(e, rows, 2, e.add(x, e.mul(first, UNIT_K * PAIRS_BYTES)), ldx, out, ldo, pairs=True)
        skip = e.add(header, e.mul(first, UNIT_BYTES))

        def heads(i: Any, state: list[Any]) -> list[Any]:
            for place in coming:
                e.prefetch(e.add(place, i))
            return state

        e.loop(e.b.select(e.b.icmp_signed("==", first, e.const(0)), header, e.const(0)), LINE_BYTES, [], heads)

        def unit(i: Any, sums: list[Any]) -> list[Any]:
            offset = e.add(skip, e.mul(i, UNIT_BYTES))
            for place in coming:
                for line in range(3):
                    e.prefetch(e.add(place, e.add(offset, LINE_BYTES * line)))
            lines = [decoder.lines(e.add(start, offset)) for decoder, start in zip(decoders, starts, strict=True)]
            for line in range(UNIT_LINES):
                weights = [e.b.bitcast(panel[line], VI) for panel in lines]
                sums = tile.grow(sums, e.add(e.mul(i, UNIT_LINES), line), weights)
            return sums

        tile.finish(e.loop(units, 1, tile.start(mode), unit), mode)

    return body


unpack = kernel("unpack", "aaaaa", "v", _unpack)
"""unpack(table, panel, target, header bytes, first unit, units)."""

coded_pair = family("coded_pair", "a" * 11, "v", [_coded_pair(rows) for rows in range(1, FEW_ROWS + 1)])
"""coded_pair(table, rows - 1, x, ldx, w, panel_bytes, header bytes, first unit, units, out, ldo, mode, ahead)."""
