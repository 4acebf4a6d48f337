"""Ceilings of devices: dense peak, memory bandwidth, memory size, with the source of each figure."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The two ceilings of a roofline and what else a prediction needs.

    Attributes:
        peak_flops: dense peak at the compute dtype, FLOP/s (a multiply-add is two operations).
        memory_bandwidth: bytes/s of main (or high-bandwidth) memory, read.
        memory_bytes: memory for weights, activations and KV.
        cache_bandwidth: bytes/s of the last-level cache; 0 if not known or not relevant.
        cache_bytes: size of the last-level cache; 0 likewise.
        step_overhead_s: fixed host and launch cost of a step.
        measured: True if the ceilings were measured on this machine, False for published figures.
    """

    name: str
    peak_flops: float
    memory_bandwidth: float
    memory_bytes: float
    cache_bandwidth: float = 0.0
    cache_bytes: float = 0.0
    step_overhead_s: float = 0.0
    measured: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("peak_flops", "memory_bandwidth", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of device {self.name} is {getattr(self, name)!r}; it must be above 0")

    @property
    def ridge_point(self) -> float:
        """FLOP/B at which the two ceilings meet: peak / bandwidth."""
        return self.peak_flops / self.memory_bandwidth
