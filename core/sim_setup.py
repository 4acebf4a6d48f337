"""What a simulation needs to know: model, seconds of a step, knobs, memory; from a device, or from a running engine.

on a device:  memory -> blocks of the pool -> CacheConfig;  ceilings -> RooflineTimer
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.config import CacheConfig, SchedulerConfig
from core.cost_model import CostModel
from core.devices import DeviceSpec
from core.memory_plan import plan_memory
from core.model_spec import ModelSpec
from core.request import SLO
from core.roofline import ATTAINABLE, Efficiency
from core.step_timer import RooflineTimer, StepTimer

NO_SLO = SLO()


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """What is simulated.

    Attributes:
        cost: FLOPs and bytes of the model; `timer` their seconds.
        device: ceilings for MFU, MBU and the roofline; None leaves them out.
        slo: targets of requests that bring none.
        label: a name for pages.
    """

    cost: CostModel
    timer: StepTimer
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    device: DeviceSpec | None = None
    max_model_len: int | None = None
    slo: SLO = NO_SLO
    seed: int = 0
    label: str = ""

    @property
    def model_len(self) -> int:
        """Most tokens of a request."""
        limit = self.cost.spec.max_model_len
        return min(self.max_model_len or limit, limit)


def setup_on_device(
    spec: ModelSpec,
    device: DeviceSpec,
    scheduler: SchedulerConfig,
    *,
    block_size: int = 16,
    weight_dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    head_dtype: str | None = None,
    tensor_parallel: int = 1,
    gpu_memory_utilization: float = 0.92,
    enable_prefix_caching: bool = True,
    max_model_len: int | None = None,
    num_blocks: int | None = None,
    efficiency: Efficiency = ATTAINABLE,
    slo: SLO = NO_SLO,
) -> SimulationSetup:
    """A setup with the pool that the device's memory allows (or `num_blocks`), priced by the device's roofline.

    Raises:
        ConfigError: if the model does not fit.
    """
    length = min(max_model_len or spec.max_model_len, spec.max_model_len)
    plan = plan_memory(
        spec,
        device,
        tokens_per_request=length,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        head_dtype=head_dtype,
        block_size=block_size,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        tensor_parallel=tensor_parallel,
    )
    blocks = num_blocks or plan.num_blocks
    cost = CostModel.of(
        spec, weight_dtype=weight_dtype, kv_dtype=kv_dtype, head_dtype=head_dtype, tensor_parallel=tensor_parallel
    )
    cache = CacheConfig(block_size=block_size, num_blocks=blocks, enable_prefix_caching=enable_prefix_caching)
    group = f" x {tensor_parallel}" if tensor_parallel > 1 else ""
    return SimulationSetup(
        cost=cost,
        timer=RooflineTimer(cost, device, efficiency),
        scheduler=scheduler,
        cache=cache,
        device=device,
        max_model_len=length,
        slo=slo,
        label=f"{spec.name} on {device.name}{group}",
    )
