"""Prediction beside measurement: the live engine as a what-if, its own requests again, and how far off it was.

live config + fitted law + the arrivals that really came  ->  WhatIf  ->  predicted run
predicted figure, measured figure, (predicted - measured) / measured
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from core.config import EngineConfig
from core.devices import DeviceSpec
from core.executor import ExecutorInfo
from core.records import RequestRecord, StepRecord
from core.run_summary import summarise
from core.sim_result import SimulationResult
from core.step_timer import StepCoefficients
from core.traces.replay_prompts import block_tokens
from core.whatif import WhatIf
from core.workload import Arrival

_COMMON_PREFIX, _OWN = 1 << 61, 1 << 60  # keys of the two streams of token ids


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure, predicted and measured; None where a side has no value."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1.0


COMPARED = (
    ("output_tokens_per_s", "output_tokens_per_s", "tokens/s"),
    ("ttft_p50", "ttft_p50_s", "s"),
    ("ttft_p99", "ttft_p99_s", "s"),
    ("itl_p50", "itl_p50_s", "s"),
    ("itl_p99", "itl_p99_s", "s"),
    ("tpot_p50", "tpot_p50_s", "s"),
    ("e2e_p50", "e2e_p50_s", "s"),
    ("e2e_p99", "e2e_p99_s", "s"),
    ("mean_step_s", "mean_step_s", "s"),
    ("mean_batch", "mean_batch", "requests"),
    ("full_batch_share", "full_batch_share", "share"),
    ("preemptions", "preemptions", "requests"),
)
"""Figure of a predicted run, field of a measured one, unit."""


def pair_run(result: SimulationResult, records: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> tuple[Pair, ...]:
    """A predicted run beside the measured one, figure by figure.

    Args:
        records: the measured steps, oldest first; requests: the measured requests that ended.
    """
    measured = summarise(records, requests)
    return tuple(Pair(name, unit, result.figure(name), measured.value(field)) for name, field, unit in COMPARED)


@lru_cache(maxsize=256)
def _common(tenant: str, tokens: int, vocab_size: int) -> tuple[int, ...]:
    key = _COMMON_PREFIX + sum(tenant.encode())
    return tuple(block_tokens(0, key, tokens, vocab_size).tolist())


def live_arrivals(requests: Sequence[RequestRecord], vocab_size: int) -> tuple[Arrival, ...]:
    """The requests of a run as arrivals in order of time, with the lengths that they really had.

    Their texts are not known, only how many prompt tokens the prefix cache served; so many tokens at the head are
    common to a tenant's requests, the rest is each one's own, and the simulated cache finds as much again.
    """
    ran = sorted((r for r in requests if r.output_tokens > 0), key=lambda r: r.arrival_s)
    found = []
    for index, r in enumerate(ran):
        shared = min(r.cached_tokens, r.prompt_tokens - 1)
        own = block_tokens(0, _OWN + index, r.prompt_tokens - shared, vocab_size).tolist()
        head = _common(r.tenant, shared, vocab_size) if shared else ()
        found.append(
            Arrival(
                r.arrival_s,
                index,
                head + tuple(own),
                r.output_tokens,
                r.tenant,
                r.priority,
                slo_ttft_s=r.slo_ttft_s,
                slo_itl_s=r.slo_itl_s,
            )
        )
    return tuple(found)


def this_machine(
    config: EngineConfig, info: ExecutorInfo, device: DeviceSpec, law: StepCoefficients, arrivals: tuple[Arrival, ...] = ()
) -> WhatIf:
    """The live engine as a what-if: its knobs and pool, and the law fitted to its own steps."""
    limit = info.spec.max_model_len
    return WhatIf(
        model=info.spec,
        device=device,
        scheduler=config.scheduler,
        coefficients=law,
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        num_swap_blocks=config.cache.num_swap_blocks,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        eviction_policy=config.cache.eviction_policy,
        weight_dtype=info.dtype if config.weight_dtype == "same" else config.weight_dtype,
        kv_dtype=info.dtype,
        head_dtype=info.dtype,
        max_model_len=min(config.max_model_len or limit, limit),
        arrivals=arrivals,
        label=f"{info.model_label} on this machine",
    )
