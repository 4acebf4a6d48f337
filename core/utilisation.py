"""How much of the machine a run used: MFU and MBU against ceilings.

    MFU = useful FLOPs / (time * peak)          MBU = useful bytes / (time * bandwidth)

A model that fits into the cache can beat main memory, so the bandwidth depends on the bytes that a step touches:
a share f = cache size / working set of them (at most 1) may come from the cache, the rest from main memory,

    1 / bandwidth = f / cache bandwidth + (1 - f) / DRAM bandwidth

which is the most that the memory could have delivered. The page says which ceiling that was.

Neither is cut off at 1. Where no step is above the ceilings (`core.ceilings` sees to it) no sum of steps is either: the
least time for n bytes, n / bandwidth, is convex in n, so that of the mean step is at most the mean of all steps' least times.
"""

from __future__ import annotations

from core.snapshot import RooflineCeilings

DRAM, CACHE, BOTH = "DRAM", "cache", "cache + DRAM"
_NEGLIGIBLE_SHARE = 0.05


def least_memory_s(moved_bytes: float, dram: float, cache: float | None, cache_bytes: float) -> float:
    """Least seconds in which `moved_bytes` can be read where up to `cache_bytes` of them come from the cache."""
    if not cache or cache_bytes <= 0 or cache <= dram:
        return moved_bytes / dram
    return min(moved_bytes, cache_bytes) / cache + max(moved_bytes - cache_bytes, 0.0) / dram


def least_step_memory_s(ceilings: RooflineCeilings, moved_bytes: float) -> float:
    """`least_memory_s` under measured ceilings."""
    return least_memory_s(moved_bytes, ceilings.dram_bytes_per_s, ceilings.cache_bytes_per_s, ceilings.cache_bytes)


def bandwidth_ceiling(ceilings: RooflineCeilings, working_set_bytes: float) -> tuple[float, str]:
    """Most bytes/s for steps that touch `working_set_bytes` each, and which memory that is (a small share is not named)."""
    cache = ceilings.cache_bytes_per_s
    if not cache or ceilings.cache_bytes <= 0 or working_set_bytes <= 0 or cache <= ceilings.dram_bytes_per_s:
        return ceilings.dram_bytes_per_s, DRAM
    share = min(ceilings.cache_bytes / working_set_bytes, 1.0)
    name = CACHE if share == 1.0 else BOTH if share >= _NEGLIGIBLE_SHARE else DRAM
    return working_set_bytes / least_step_memory_s(ceilings, working_set_bytes), name


def mfu(useful_flops: float, busy_s: float, ceilings: RooflineCeilings) -> float | None:
    """Useful FLOPs as a share of the peak over `busy_s`; None where nothing ran."""
    return useful_flops / (busy_s * ceilings.peak_flops) if busy_s > 0 else None


def mbu(useful_bytes: float, busy_s: float, steps: int, ceilings: RooflineCeilings) -> tuple[float | None, str]:
    """Useful bytes as a share of the bandwidth over `busy_s`, and the ceiling's name; None where nothing ran."""
    if busy_s <= 0 or not steps:
        return None, ""
    bandwidth, name = bandwidth_ceiling(ceilings, useful_bytes / steps)
    return useful_bytes / (busy_s * bandwidth), name
