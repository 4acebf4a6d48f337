"""How much of the machine a run used: MFU and MBU against measured ceilings, never above 1.

    MFU = useful FLOPs / (time * peak)          MBU = useful bytes / (time * bandwidth)

A model that fits into the cache can beat main memory, so the bandwidth depends on the bytes that a step touches:
a share f = cache size / working set of them (at most 1) may come from the cache, the rest from main memory,

    1 / bandwidth = f / cache bandwidth + (1 - f) / DRAM bandwidth

which is the most that the memory could have delivered. The page says which ceiling that was.
"""

from __future__ import annotations

from core.snapshot import RooflineCeilings

DRAM, CACHE, BOTH = "DRAM", "cache", "cache + DRAM"
_NEGLIGIBLE_SHARE = 0.05


def bandwidth_ceiling(ceilings: RooflineCeilings, working_set_bytes: float) -> tuple[float, str]:
    """Most bytes/s for steps that touch `working_set_bytes` each, and which memory that is."""
    cache = ceilings.cache_bytes_per_s
    if not cache or ceilings.cache_bytes <= 0 or working_set_bytes <= 0 or cache <= ceilings.dram_bytes_per_s:
        return ceilings.dram_bytes_per_s, DRAM
    share = min(ceilings.cache_bytes / working_set_bytes, 1.0)
    if share < _NEGLIGIBLE_SHARE:
        return ceilings.dram_bytes_per_s, DRAM
    bandwidth = 1.0 / (share / cache + (1.0 - share) / ceilings.dram_bytes_per_s)
    return bandwidth, CACHE if share == 1.0 else BOTH


def mfu(useful_flops: float, busy_s: float, ceilings: RooflineCeilings) -> float | None:
    """Useful FLOPs as a share of the peak over `busy_s`; None where nothing ran. Capped at 1: a probe may measure low."""
    return min(useful_flops / (busy_s * ceilings.peak_flops), 1.0) if busy_s > 0 else None


def mbu(useful_bytes: float, busy_s: float, steps: int, ceilings: RooflineCeilings) -> tuple[float | None, str]:
    """Useful bytes as a share of the bandwidth over `busy_s`, and the ceiling's name; capped at 1 as `mfu`."""
    if busy_s <= 0 or not steps:
        return None, ""
    bandwidth, name = bandwidth_ceiling(ceilings, useful_bytes / steps)
    return min(useful_bytes / (busy_s * bandwidth), 1.0), name
