"""The register tile: out[m rows, p * 16 columns] = x[m rows, K] times p panels of packed weights.

    panel of bfloat16    [K / 2][16 columns][2]   one 32-bit lane holds k (low half) and k + 1 of a column
    panel of float32     [K][16 columns]
    natural bfloat16     rows of a V block: [K][head_dim], 16 columns taken at a time

Widening bfloat16 costs one shift for even k and one mask for odd k; both run beside the multiply-adds. Each output
is ONE chain of fused multiply-adds over k = 0, 1, 2, ... whatever m and p are, so a row's result does not depend on
the rows that share its tile. Six rows by 16 columns fill the 16 registers of AVX2 (12 sums, 2 weights, 1 broadcast).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from core.runtime.kernels.emit import FLOAT, LANES, VF, VI, Emitter, family, kernel

MAX_ROWS = 6

STORE, ADD, CONTINUE = 0, 1, 2
"""What becomes of `out`: overwritten, added to after the sum, or the start of the sum."""


def _weights(e: Emitter, element: str, natural: bool, address: Any) -> tuple[Any, ...]:
    """The next weights of one panel as float32: one vector for each k that the load covers."""
    if element == "f32":
        return (e.load(address),)
    if natural:
        return (e.widen_bf16(address),)
    raw = e.load(address, VI)
    even = e.b.bitcast(e.b.shl(raw, e.ints(16)), VF)
    odd = e.b.bitcast(e.b.and_(raw, e.ints(0xFFFF0000)), VF)
    return even, odd


def _tile(rows: int, panels: int, natural: bool) -> Any:
    def body(
        e: Emitter,
        element: str,
        x: Any,
        ldx: Any,
        w: Any,
        panel_bytes: Any,
        k_bytes: Any,
        k: Any,
        out: Any,
        ldo: Any,
        mode: Any,
        ahead: Any,
        ahead_step: Any,
    ) -> None:
        b = e.b
        cells = [(r, j) for r in range(rows) for j in range(panels)]
        x_rows = [e.at(e.add(x, e.mul(ldx, 4 * r)), FLOAT) for r in range(rows)]
        w_panels = [e.add(w, e.mul(panel_bytes, j)) for j in range(panels)]
        targets = {(r, j): e.add(e.add(out, e.mul(ldo, 4 * r)), 4 * LANES * j) for r, j in cells}
        entry = b.block
        resume, ready, add, store = (e.function.append_basic_block(n) for n in ("resume", "ready", "add", "store"))
        b.cbranch(b.icmp_signed("==", mode, e.int(CONTINUE)), resume, ready)
        b.position_at_end(resume)
        old = [e.load(targets[c]) for c in cells]
        b.branch(ready)
        b.position_at_end(ready)
        sums = []
        for value in old:
            phi = b.phi(VF)
            phi.add_incoming(ir.Constant(VF, None), entry)
            phi.add_incoming(value, resume)
            sums.append(phi)
        covered = 2 if element == "bf16" and not natural else 1

        def advance(index: Any, state: list[Any]) -> list[Any]:
            offset = e.mul(b.lshr(index, e.int(1)) if covered == 2 else index, k_bytes)
            if not natural:
                i = b.lshr(index, e.int(1)) if covered == 2 else index
                e.prefetch(e.add(ahead, e.mul(i, ahead_step)))
            loaded = [_weights(e, element, natural, e.add(panel, offset)) for panel in w_panels]
            for s in range(covered):
                for r in range(rows):
                    value = e.splat(b.load(b.gep(x_rows[r], [e.add(index, s)]), align=4))
                    for j in range(panels):
                        cell = r * panels + j
                        state[cell] = e.fma(value, loaded[j][s], state[cell])
            return state

        sums = e.loop(k, covered, sums, advance)
        finished = b.block
        b.cbranch(b.icmp_signed("==", mode, e.int(ADD)), add, store)
        b.position_at_end(add)
        added = [b.fadd(e.load(targets[c]), s) for c, s in zip(cells, sums, strict=True)]
        b.branch(store)
        b.position_at_end(store)
        final = []
        for plain, more in zip(sums, added, strict=True):
            phi = b.phi(VF)
            phi.add_incoming(plain, finished)
            phi.add_incoming(more, add)
            final.append(phi)
        for cell, value in zip(cells, final, strict=True):
            e.store(value, targets[cell])

    return body


tile = family("tile", "a" * 11, "v", [_tile(rows, 1, False) for rows in range(1, MAX_ROWS + 1)])
"""tile(table, rows - 1, x, ldx, w, panel_bytes, k_bytes, k, out, ldo, mode, ahead, ahead_step): one panel."""

tile_1x4 = kernel("tile_1x4", "a" * 11, "v", _tile(1, 4, False))
tile_2x2 = kernel("tile_2x2", "a" * 11, "v", _tile(2, 2, False))
"""One or two rows leave most registers free: several panels at once keep the multiply-adds busy."""

tile_natural = family("tile_natural", "a" * 11, "v", [_tile(rows, 1, True) for rows in range(1, MAX_ROWS + 1)])
