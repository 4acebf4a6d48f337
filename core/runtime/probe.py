"""The ceilings of this machine, measured where the model runs: peak FLOP/s, memory and cache bandwidth.

    peak   best rate of a square matrix product, 2 n^3 operations, at the compute dtype or at float32, whichever
           is higher: kernels may widen bfloat16 weights to float32 and use that unit; where the compiled kernels are
           in use their own register tile counts too, since a step may not exceed its ceiling
    DRAM   best rate of reading an array many times larger than the last-level cache
    cache  best rate of reading an array of a quarter of the last-level cache, again and again

Best of several repeats, in several rounds with a pause between them: a ceiling is what the machine can do, not what it does
beside other work, and a burst of other work rarely lasts through all rounds. About two seconds; the quick probe is one
round of the largest figures and takes a fifth of one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from core.clock import Clock, let_pass
from core.snapshot import RooflineCeilings

if TYPE_CHECKING:
    from core.runtime.kernels.team import Team

ROUNDS = 2
PAUSE_S = 0.2
REPEATS = 6
PRODUCT_SIZE = 1024
LARGE_PRODUCT_SIZE, LARGE_REPEATS = 2048, 2
GPU_PRODUCT_SIZE, QUICK_GPU_PRODUCT_SIZE = 8192, 4096
SMALL_PRODUCT_SIZE = 256
LEAST_DRAM_BYTES = 256 * 2**20
GPU_DRAM_BYTES, QUICK_GPU_DRAM_BYTES = 2 * 2**30, 2**29
_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_cache_bytes(folder: Path = _CACHE_FOLDER) -> int:
    """Size of the largest cache that the system tells of, bytes; 0 where it tells nothing."""
    sizes = [0]
    for entry in folder.glob("index*/size"):
        text = entry.read_text().strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:].upper(), 1)
        digits = text[:-1] if unit > 1 else text
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes)


def _best_s(run: Callable[[], object], clock: Clock, device: torch.device, repeats: int = REPEATS) -> float:
    """Shortest of several timed runs, s; the first one only warms up."""
    times = []
    for _ in range(repeats + 1):
        start = clock.now()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock.now() - start)
    return max(min(times[1:]), 1e-9)


def product_flops(size: int, dtype: torch.dtype, device: torch.device, clock: Clock, repeats: int = REPEATS) -> float:
    """Rate of a size^3 product, FLOP/s."""
    a = torch.full((size, size), 0.5, dtype=dtype, device=device)
    b = torch.full((size, size), 0.25, dtype=dtype, device=device)
    out = torch.empty_like(a)
    return 2.0 * size**3 / _best_s(lambda: torch.mm(a, b, out=out), clock, device, repeats)


def read_bytes_per_s(num_bytes: int, device: torch.device, clock: Clock, passes: int = 1) -> float:
    """Rate of reading an array of `num_bytes`, bytes/s; `passes` runs of it are timed together."""
    array = torch.ones(max(num_bytes // 4, 1), dtype=torch.float32, device=device)

    def run() -> None:
        for _ in range(passes):
            array.sum()

    return passes * array.numel() * 4 / _best_s(run, clock, device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kernel_team() -> Team | None:
    """The threads of the compiled kernels, None where this process does not use them."""
    if "core.runtime.kernels.team" not in sys.modules:
        return None
    from core.runtime.kernels.team import largest_team

    return largest_team()


def measure_ceilings(
    dtype: torch.dtype, device: torch.device, label: str, clock: Clock, *, quick: bool = False
) -> RooflineCeilings:
    """Measure both ceilings on `device`.

    Args:
        dtype: compute dtype of the model.
        label: the device's name for people.
        clock: a clock that moves with wall time.
        quick: one round only; for a machine that was measured before.
    """
    with torch.inference_mode():
        if device.type == "cuda":
            size, dram_bytes = (QUICK_GPU_PRODUCT_SIZE, QUICK_GPU_DRAM_BYTES) if quick else (GPU_PRODUCT_SIZE, GPU_DRAM_BYTES)
            peak = product_flops(size, dtype, device, clock)
            dram = read_bytes_per_s(dram_bytes, device, clock)
            return RooflineCeilings(label, peak, dram, None, dram_bytes, _name(dtype))
        cache_bytes = last_level_cache_bytes()
        sizes = _Sizes(cache_bytes, max(8 * cache_bytes, LEAST_DRAM_BYTES))
        rounds = 1 if quick else ROUNDS
        with _all_threads():
            found = [_round(dtype, device, clock, sizes, quick) for _ in _spread(rounds, clock)]
    peak, dram, cache = (max(values) for values in zip(*found, strict=True))
    return RooflineCeilings(
        device=label,
        peak_flops=peak,
        dram_bytes_per_s=dram,
        cache_bytes_per_s=max(cache, dram) if cache else None,
        working_set_bytes=sizes.dram_bytes,
        dtype=_name(dtype),
        cache_bytes=float(cache_bytes),
    )


@contextmanager
def _all_threads() -> Iterator[None]:
    """PyTorch has one thread while the kernels' team works; its products are measured with as many as the team has."""
    team, before = _kernel_team(), torch.get_num_threads()
    if team is not None:
        torch.set_num_threads(max(before, team.threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class _Sizes:
    cache_bytes: int
    dram_bytes: int


def _spread(rounds: int, clock: Clock) -> Iterator[int]:
    """Count the rounds, with a rest between two."""
    for k in range(rounds):
        if k:
            let_pass(clock, PAUSE_S)
        yield k


def _round(dtype: torch.dtype, device: torch.device, clock: Clock, sizes: _Sizes, quick: bool) -> tuple[float, float, float]:
    """(peak, DRAM, cache) of one round on a CPU; 0 for a cache that the system does not tell of."""
    team, cache = _kernel_team(), 0.0
    if team is not None:
        from core.runtime.kernels import ceilings

        rounds = 1 if quick else ceilings.ROUNDS
        peak = ceilings.peak_flops(_name(dtype), team, clock)
        dram = ceilings.read_bytes_per_s(sizes.dram_bytes, team, clock, rounds=rounds)
        if sizes.cache_bytes:
            cache = ceilings.read_bytes_per_s(sizes.cache_bytes // 4, team, clock, passes=16, rounds=rounds)
        if quick:
            return peak, dram, cache
    else:
        peak = dram = 0.0
    peak = max(peak, product_flops(PRODUCT_SIZE, torch.float32, device, clock))
    if not quick:
        peak = max(peak, product_flops(LARGE_PRODUCT_SIZE, torch.float32, device, clock, LARGE_REPEATS))
    if dtype is not torch.float32 and product_flops(SMALL_PRODUCT_SIZE, dtype, device, clock) > peak / 4:
        peak = max(peak, product_flops(PRODUCT_SIZE, dtype, device, clock))
    dram = max(dram, read_bytes_per_s(sizes.dram_bytes, device, clock))
    if sizes.cache_bytes:
        cache = max(cache, read_bytes_per_s(sizes.cache_bytes // 4, device, clock, passes=16))
    return peak, dram, cache
