"""Ceilings of devices: dense peak, memory bandwidth, memory size, with the source of each figure.

    ridge point = peak / bandwidth: the FLOP/B below which memory sets the time of a step

The peak is always the dense 16-bit one, never the figure with structured sparsity, which is twice as large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.errors import ConfigError

_NOT_NEGATIVE = (
    "cache_bandwidth",
    "cache_bytes",
    "step_overhead_s",
    "link_bandwidth",
    "link_latency_s",
    "collective_base_s",
    "host_bandwidth",
    "price_per_hour",
)


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
        link_bandwidth: bytes/s to the other devices of a tensor-parallel group, one direction; 0 if there are none.
        link_latency_s: time of one hop of a ring all-reduce; collective_base_s: fixed time of one all-reduce.
        host_bandwidth: bytes/s between device and host memory, one direction (swap); 0: the memory's own.
        price_per_hour: cost of one device for an hour in any currency; 0 if not given.
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
    link_bandwidth: float = 0.0
    link_latency_s: float = 0.0
    collective_base_s: float = 0.0
    host_bandwidth: float = 0.0
    price_per_hour: float = 0.0

    def __post_init__(self) -> None:
        for name in ("peak_flops", "memory_bandwidth", "memory_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} of device {self.name} is {getattr(self, name)!r}; it must be a number above 0")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} of device {self.name} is {getattr(self, name)!r}; it must be a number of at least 0")

    @property
    def ridge_point(self) -> float:
        """FLOP/B at which the two ceilings meet: peak / bandwidth."""
        return self.peak_flops / self.memory_bandwidth


# Ring all-reduce under NCCL's low-latency protocol (its tuning table): 6.6 us a call, 0.6 us a hop on NVLink, 1.0 us on PCIe.
_COLLECTIVE_BASE_S, _NVLINK_HOP_S, _PCIE_HOP_S = 6.6e-6, 0.6e-6, 1.0e-6


def _preset(
    name: str,
    peak_tflops: float,
    bandwidth_tb_s: float,
    memory_gb: float,
    *,
    link_gb_s: float,
    host_gb_s: float,
    source: str,
    nvlink: bool = True,
) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        peak_flops=peak_tflops * 1e12,
        memory_bandwidth=bandwidth_tb_s * 1e12,
        memory_bytes=memory_gb * 1e9,
        source=source,
        link_bandwidth=link_gb_s * 1e9,
        link_latency_s=_NVLINK_HOP_S if nvlink else _PCIE_HOP_S,
        collective_base_s=_COLLECTIVE_BASE_S,
        host_bandwidth=host_gb_s * 1e9,
    )


DEVICE_PRESETS: tuple[DeviceSpec, ...] = (
    _preset(
        "A100 80 GB SXM", 312, 2.04, 80, link_gb_s=300, host_gb_s=32,
        source="NVIDIA A100 datasheet: 312 TFLOP/s dense BF16, 2,039 GB/s, NVLink 600 GB/s both ways, PCIe 4 x16",
    ),
    _preset(
        "H100 SXM", 989, 3.35, 80, link_gb_s=450, host_gb_s=64,
        source="NVIDIA H100 datasheet: 989 TFLOP/s dense BF16 (1,979 is the sparse figure), 3.35 TB/s, NVLink 900 GB/s both ways,"
        " PCIe 5 x16",
    ),
    _preset(
        "H200 SXM", 989, 4.8, 141, link_gb_s=450, host_gb_s=64,
        source="NVIDIA H200 datasheet: 989 TFLOP/s dense BF16, 4.8 TB/s, NVLink 900 GB/s both ways, PCIe 5 x16",
    ),
    _preset(
        "L4", 121, 0.30, 24, link_gb_s=32, host_gb_s=32, nvlink=False,
        source="NVIDIA L4 datasheet: 121 TFLOP/s dense BF16 (242 is the sparse figure), 300 GB/s, PCIe 4 x16",
    ),
    _preset(
        "L40S", 362, 0.864, 48, link_gb_s=32, host_gb_s=32, nvlink=False,
        source="NVIDIA L40S datasheet: 362 TFLOP/s dense BF16, 864 GB/s, PCIe 4 x16",
    ),
    _preset(
        "RTX 4090", 165, 1.008, 24, link_gb_s=32, host_gb_s=32, nvlink=False,
        source="NVIDIA Ada architecture paper: 165.2 TFLOP/s dense BF16 with 32-bit accumulation, 1,008 GB/s, PCIe 4 x16",
    ),
    _preset(
        "MI300X", 1307, 5.3, 192, link_gb_s=448, host_gb_s=64,
        source="AMD MI300X datasheet: 1,307 TFLOP/s dense BF16, 5.3 TB/s, seven Infinity Fabric links of 128 GB/s both ways,"
        " PCIe 5 x16; the latency of a hop is taken from NVLink",
    ),
)  # fmt: skip
"""Published ceilings; "this machine" is a measured `DeviceSpec` and comes from the probe."""

DEVICES: dict[str, DeviceSpec] = {device.name: device for device in DEVICE_PRESETS}


def device_named(name: str) -> DeviceSpec:
    """Return a preset.

    Raises:
        ConfigError: for an unknown name; the message lists the known ones.
    """
    if name not in DEVICES:
        raise ConfigError(f"device {name!r} is not known; known: {', '.join(DEVICES)}. Or give peak, bandwidth and memory")
    return DEVICES[name]


def custom_device(
    name: str,
    *,
    peak_tflops: float,
    bandwidth_gb_s: float,
    memory_gb: float,
    link_gb_s: float = 0.0,
    host_gb_s: float = 0.0,
    step_overhead_s: float = 0.0,
    price_per_hour: float = 0.0,
) -> DeviceSpec:
    """A device from figures that a person typed, in the units of datasheets (1 GB = 1e9 bytes).

    Raises:
        ConfigError: naming the figure that makes no sense.
    """
    return DeviceSpec(
        name=name or "custom",
        peak_flops=peak_tflops * 1e12,
        memory_bandwidth=bandwidth_gb_s * 1e9,
        memory_bytes=memory_gb * 1e9,
        step_overhead_s=step_overhead_s,
        source="entered by hand",
        link_bandwidth=link_gb_s * 1e9,
        link_latency_s=_PCIE_HOP_S,
        collective_base_s=_COLLECTIVE_BASE_S,
        host_bandwidth=host_gb_s * 1e9,
        price_per_hour=price_per_hour,
    )
