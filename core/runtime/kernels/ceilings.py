"""What this machine can do at best in the terms of the kernels: the ceilings that no step of theirs can pass.

    peak   register tiles over panels that stay in the first two cache levels, all threads at once
    DRAM   all threads read an array far above the last-level cache, in one, two, four or eight runs each
    cache  the same with an array inside the last-level cache

The peak is that of the step's own multiply-adds (bfloat16 pairs where the processor multiplies them, else float32
arithmetic on weights widened on the way), so model FLOPs over it is the share of the machine that the products reach.
Best of several: a ceiling is not an average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from core.clock import Clock
from core.runtime.kernels import unpack  # noqa: F401  a kernel's place in the table is its order of registration
from core.runtime.kernels.emit import I64, PAIRS, VOID, Emitter, kernel
from core.runtime.kernels.microkernel import MAX_PAIR_ROWS, MAX_ROWS, STORE
from core.runtime.kernels.pack import huge_empty, pack

if TYPE_CHECKING:
    from core.runtime.kernels.team import Team

PEAK_K = 512
PEAK_REPEATS = 500
"""Tiles in a row, under a millisecond of work: short enough to fall between two turns of other work on the same cores."""

PEAK_ROUNDS = 80
TILE_FLOATS = MAX_PAIR_ROWS * 32
STREAMS = (1, 2, 4, 8)
ROUNDS = 4
SINK_BYTES = 64


def _tiles(e: Emitter, element: str, d: Any, thread: Any) -> None:
    """d: x, two packed panels, out (TILE_FLOATS a thread); a tile of one panel, or of two with PAIRS."""
    x, w, out = (e.load(e.add(d, 8 * i), I64, 8) for i in range(3))
    target = e.add(out, e.mul(thread, 4 * TILE_FLOATS))
    name = f"tile_pair_{MAX_PAIR_ROWS - 1}" if element == PAIRS else f"tile_{MAX_ROWS - 1}"

    def once(i: Any, state: list[Any]) -> list[Any]:
        numbers = (PEAK_K, PEAK_K * 32, 64, PEAK_K, 32, STORE, 0)
        ldx, panel, k_bytes, k, ldo, mode, none = (e.const(n) for n in numbers)
        e.call(name, VOID, x, ldx, w, panel, k_bytes, k, target, ldo, mode, w, none, none)
        return state

    e.loop(e.const(PEAK_REPEATS), 1, [], once)


def _reads(e: Emitter, element: str, d: Any, thread: Any) -> None:
    """d: array, bytes a thread, streams, passes, sink (SINK_BYTES a thread)."""
    array, share, streams, passes, sink = (e.load(e.add(d, 8 * i), I64, 8) for i in range(5))
    start = e.add(array, e.b.mul(share, thread))

    def once(i: Any, state: list[Any]) -> list[Any]:
        e.call("read", VOID, start, share, streams, e.add(sink, e.mul(thread, SINK_BYTES)))
        return state

    e.loop(passes, 1, [], once)


kernel("probe_tiles", "aa", "v", _tiles)
kernel("probe_reads", "aa", "v", _reads)


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A library function that a team can run as a step."""

    address: int


def _native(name: str, dtype: str) -> NativeStep:
    from core.runtime.kernels.library import function_address

    return NativeStep(function_address(name, dtype))


def _best_s(team: Team, step: NativeStep, description: npt.NDArray[np.int64], clock: Clock, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = clock.now()
        team.run(step, description.ctypes.data)
        best = min(best, clock.now() - start)
    return max(best, 1e-9)


def peak_flops(dtype: str, team: Team, clock: Clock) -> float:
    """Best rate of multiply-adds over weights of `dtype`, two operations each, FLOP/s of all threads."""
    from core.runtime.kernels.library import BF16_PAIRS, product_dtype

    products = product_dtype(dtype)
    pairs = products == BF16_PAIRS
    x = torch.full((MAX_PAIR_ROWS, PEAK_K), 0.5, dtype=torch.bfloat16 if pairs else torch.float32)
    packed = pack(torch.full((32, PEAK_K), 0.25, dtype=getattr(torch, dtype)))
    out = torch.zeros(team.threads, TILE_FLOATS)
    description = np.array([x.data_ptr(), packed.address, out.data_ptr()], np.int64)
    outputs = 32 * MAX_PAIR_ROWS if pairs else 16 * MAX_ROWS
    operations = 2.0 * outputs * PEAK_K * PEAK_REPEATS * team.threads
    return operations / _best_s(team, _native("probe_tiles", products), description, clock, PEAK_ROUNDS)


def read_bytes_per_s(num_bytes: int, team: Team, clock: Clock, passes: int = 1, rounds: int = ROUNDS) -> float:
    """Best rate of reading an array of about `num_bytes`, bytes/s of all threads together."""
    unit = 256 * max(STREAMS)
    share = max(num_bytes // team.threads // unit, 1) * unit
    array = huge_empty((share * team.threads,), torch.uint8)
    array.fill_(1)
    sink = np.zeros(team.threads * SINK_BYTES, np.uint8)
    step, best = _native("probe_reads", "float32"), float("inf")
    for streams in STREAMS:
        description = np.array([array.data_ptr(), share, streams, passes, sink.ctypes.data], np.int64)
        best = min(best, _best_s(team, step, description, clock, rounds))
    return passes * share * team.threads / best
