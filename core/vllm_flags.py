"""This engine's configuration as the command that starts a real server: `vllm serve` or SGLang's `launch_server`.

    knob -> exact flag        or        knob -> note: what takes its place, or that nothing does

Each knob appears once: as a flag, or in a note that says why there is none. Flags are those of vLLM 0.32 (v1 engine) and
SGLang 0.5; a boolean that is the server's own default is still written, so that the command says all it means.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from core.config import (
    AdmissionMoment,
    AdmissionPolicy,
    BatchPolicy,
    CacheConfig,
    EngineConfig,
    EvictionPolicy,
    PreemptionMode,
    QueuePolicy,
    SchedulerConfig,
    VictimPolicy,
)
from core.models_catalog import MODELS

A_MODEL = "MODEL"
"""Stands for a model of which only the geometry is known."""

_HUB_NAMES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command and what it cannot say.

    Attributes:
        argv: the command, one argument an entry.
        notes: (knob, sentence) for each knob without an exact counterpart.
    """

    server: str
    argv: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The command for a shell, one flag a line."""
        head, rest = [], list(self.argv)
        while rest and not rest[0].startswith("--"):
            head.append(shlex.quote(rest.pop(0)))
        lines = [" ".join(head)]
        while rest:
            part = [rest.pop(0)]
            while rest and not rest[0].startswith("--"):
                part.append(shlex.quote(rest.pop(0)))
            lines.append("  " + " ".join(part))
        return " \\\n".join(lines)


@dataclass(slots=True)
class _Draft:
    argv: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def flag(self, name: str, value: object = None) -> None:
        self.argv.append(name)
        if value is not None:
            self.argv.append(str(value))

    def note(self, knob: str, text: str) -> None:
        self.notes.append((knob, text))


def hub_name(model: str) -> str:
    """The repository that a server loads for a model named here; a folder or hub id stays as it is."""
    if model in _HUB_NAMES:
        return _HUB_NAMES[model]
    return MODELS[model].repo if model in MODELS else model


def vllm_command(
    config: EngineConfig, *, tensor_parallel: int = 1, kv_dtype: str | None = None, gpu_memory_utilization: float | None = None
) -> ServerCommand:
    """`vllm serve` with the knobs of `config`.

    Args:
        kv_dtype: "fp8" for an 8-bit KV cache; None follows the model.
        gpu_memory_utilization: let the server size its pool by this share instead of by `num_blocks`.
    """
    d = _Draft(["vllm", "serve", hub_name(config.model)])
    _model_notes(d, config)
    d.flag("--dtype", config.dtype)
    if config.weight_dtype == "int8":
        d.note(
            "weight_dtype", "int8 weights: serve a checkpoint quantised to W8A16 or W8A8; vLLM reads its format from config.json"
        )
    if kv_dtype is not None and kv_dtype.startswith("fp8"):
        d.flag("--kv-cache-dtype", kv_dtype)
    if config.max_model_len is not None:
        d.flag("--max-model-len", config.max_model_len)
    d.flag("--tensor-parallel-size", tensor_parallel)
    d.flag("--seed", config.seed)
    _vllm_scheduler(d, config.scheduler)
    _vllm_cache(d, config.cache, gpu_memory_utilization)
    return ServerCommand("vLLM", tuple(d.argv), tuple(d.notes))


def _vllm_scheduler(d: _Draft, s: SchedulerConfig) -> None:
    d.flag("--max-num-seqs", s.max_num_seqs)
    d.flag("--max-num-batched-tokens", s.max_num_batched_tokens)
    if s.batch_policy is BatchPolicy.CHUNKED:
        d.flag("--enable-chunked-prefill" if s.enable_chunked_prefill else "--no-enable-chunked-prefill")
        d.flag("--long-prefill-token-threshold", s.long_prefill_token_threshold or 0)  # there 0 is no limit
    elif s.batch_policy is BatchPolicy.WHOLE_PROMPTS:
        d.flag("--no-enable-chunked-prefill")
    else:
        d.note(
            "batch_policy",
            f"{s.batch_policy}: vLLM's v1 scheduler always runs decodes first and mixes prompts in; no counterpart",
        )
    if s.queue_policy in (QueuePolicy.FCFS, QueuePolicy.PRIORITY):
        d.flag("--scheduling-policy", s.queue_policy)
    else:
        d.flag("--scheduling-policy", "fcfs")
        d.note(
            "queue_policy",
            f"{s.queue_policy}: vLLM knows fcfs and priority; a router in front, or --scheduler-cls, takes its place",
        )
    if s.queue_policy is QueuePolicy.PRIORITY and not s.preemptive_priority:
        d.note("preemptive_priority", "off: vLLM's priority policy preempts when memory is short, never for a seat")
    if s.admission_policy is AdmissionPolicy.WATERMARK:
        d.flag("--watermark", s.watermark)
    elif s.admission_policy is AdmissionPolicy.RESERVE:
        d.note(
            "admission_policy",
            "reserve: vLLM takes blocks as it goes; a pool large enough for max_num_seqs * max_model_len has the same effect",
        )
    if s.preemption_mode is PreemptionMode.SWAP:
        d.note(
            "preemption_mode",
            "swap was dropped in vLLM v1, which recomputes; --kv-offloading-size keeps evicted blocks in host memory",
        )
    if s.victim_policy is not VictimPolicy.LATEST_ARRIVAL:
        d.note(
            "victim_policy",
            f"{s.victim_policy}: vLLM preempts the latest arrival (or the lowest priority under --scheduling-policy priority)",
        )
    _common_notes(d, s, "vLLM", "--scheduler-cls")


def _vllm_cache(d: _Draft, c: CacheConfig, share: float | None) -> None:
    d.flag("--block-size", c.block_size)
    if share is not None:
        d.flag("--gpu-memory-utilization", f"{share:g}")
    else:
        d.flag("--num-gpu-blocks-override", c.num_blocks)
    d.flag("--enable-prefix-caching" if c.enable_prefix_caching else "--no-enable-prefix-caching")
    if c.eviction_policy is not EvictionPolicy.LRU:
        d.note("eviction_policy", f"{c.eviction_policy}: vLLM evicts the least recently used block; no counterpart")
    if c.num_swap_blocks:
        d.note("num_swap_blocks", "vLLM v1 has no swap space; --kv-offloading-size (GiB) is the nearest")


def sglang_command(
    config: EngineConfig, *, tensor_parallel: int = 1, kv_dtype: str | None = None, gpu_memory_utilization: float | None = None
) -> ServerCommand:
    """`python -m sglang.launch_server` with the knobs of `config`; arguments as `vllm_command`."""
    d = _Draft(["python", "-m", "sglang.launch_server"])
    d.flag("--model-path", hub_name(config.model))
    _model_notes(d, config)
    d.flag("--dtype", config.dtype)
    if config.weight_dtype == "int8":
        d.note("weight_dtype", "int8 weights: serve a quantised checkpoint, e.g. with --quantization w8a8_int8")
    if kv_dtype is not None and kv_dtype.startswith("fp8"):
        d.flag("--kv-cache-dtype", "fp8_e4m3" if kv_dtype == "fp8" else kv_dtype)
    if config.max_model_len is not None:
        d.flag("--context-length", config.max_model_len)
    d.flag("--tp-size", tensor_parallel)
    d.flag("--random-seed", config.seed)
    _sglang_scheduler(d, config.scheduler)
    _sglang_cache(d, config.cache, gpu_memory_utilization)
    return ServerCommand("SGLang", tuple(d.argv), tuple(d.notes))


def _sglang_scheduler(d: _Draft, s: SchedulerConfig) -> None:
    d.flag("--max-running-requests", s.max_num_seqs)
    d.flag("--max-queued-requests", s.max_waiting)
    _sglang_batch(d, s)
    if s.queue_policy is QueuePolicy.LONGEST_PREFIX:
        d.flag("--schedule-policy", "lpm")
    else:
        d.flag("--schedule-policy", "fcfs")
    if s.queue_policy is QueuePolicy.PRIORITY:
        d.flag("--enable-priority-scheduling")
        d.flag("--schedule-low-priority-values-first")
        if s.preemptive_priority:
            d.flag("--priority-scheduling-preemption-threshold", 0)
        else:
            d.flag("--disable-priority-preemption")
    elif s.queue_policy not in (QueuePolicy.FCFS, QueuePolicy.LONGEST_PREFIX):
        d.note("queue_policy", f"{s.queue_policy}: SGLang knows fcfs, lpm, lof, dfs-weight, random and priority; fcfs is written")
    if s.admission_policy is AdmissionPolicy.RESERVE:
        d.flag("--schedule-conservativeness", 1.0)
        d.note("admission_policy", "reserve: at 1.0 SGLang reserves an estimate of the output, not all of max_tokens")
    elif s.admission_policy is AdmissionPolicy.WATERMARK:
        d.note("watermark", "SGLang has no watermark; a higher --schedule-conservativeness admits later")
    else:
        d.note(
            "admission_policy",
            "on_demand: SGLang reserves an estimate of the output; --schedule-conservativeness 0 comes nearest",
        )
    if s.preemption_mode is PreemptionMode.SWAP:
        d.note("preemption_mode", "SGLang retracts and recomputes; --enable-hierarchical-cache keeps evicted KV in host memory")
    if s.victim_policy is not VictimPolicy.FEWEST_TOKENS_LOST:
        d.note("victim_policy", f"{s.victim_policy}: SGLang retracts the request with the fewest output tokens first")
    _common_notes(d, s, "SGLang", "")


def _sglang_batch(d: _Draft, s: SchedulerConfig) -> None:
    policy = s.batch_policy
    if policy is BatchPolicy.CHUNKED and s.enable_chunked_prefill:
        d.flag("--chunked-prefill-size", s.long_prefill_token_threshold or s.max_num_batched_tokens)
        d.flag("--max-prefill-tokens", s.max_num_batched_tokens)
        d.flag("--enable-mixed-chunk")
        d.note("max_num_batched_tokens", "SGLang bounds prompt tokens of a step; decodes of a mixed step come on top")
        return
    d.flag("--chunked-prefill-size", -1)
    d.flag("--max-prefill-tokens", s.max_num_batched_tokens)
    if policy in (BatchPolicy.CHUNKED, BatchPolicy.WHOLE_PROMPTS):
        d.flag("--enable-mixed-chunk")
    elif policy is BatchPolicy.PREFILL_FIRST:
        d.note("batch_policy", "prefill_first: SGLang runs prefills before decodes, but no decode rides along")
    elif policy is BatchPolicy.FIXED:
        d.note("batch_policy", "fixed: SGLang always batches continuously; TensorRT-LLM's STATIC_BATCH is the nearest")


def _sglang_cache(d: _Draft, c: CacheConfig, share: float | None) -> None:
    d.flag("--page-size", c.block_size)
    if share is not None:
        d.flag("--mem-fraction-static", f"{share:g}")
        d.note(
            "gpu_memory_utilization",
            "SGLang's share holds weights and KV pool; activations come on top, so it is set lower than vLLM's",
        )
    else:
        d.flag("--max-total-tokens", c.capacity_tokens)
    if not c.enable_prefix_caching:
        d.flag("--disable-radix-cache")
    d.flag("--radix-eviction-policy", c.eviction_policy)
    if c.num_swap_blocks:
        d.note("num_swap_blocks", "SGLang has no swap space; --enable-hierarchical-cache with --hicache-ratio is the nearest")


def _model_notes(d: _Draft, config: EngineConfig) -> None:
    if config.model == A_MODEL:
        d.note("model", f"{A_MODEL}: only its config.json is known here; put its repository or its folder in this place")
    if config.model in ("tiny", "synthetic"):
        d.note("model", f"{config.model} has seeded weights that no server can load; put a model of your own in its place")
    if config.num_threads:
        d.note("num_threads", "threads of a CPU forward pass: no flag (vLLM's CPU back end reads VLLM_CPU_OMP_THREADS_BIND)")


def _common_notes(d: _Draft, s: SchedulerConfig, server: str, plugin: str) -> None:
    way = f"; a scheduler of your own ({plugin}) takes its place" if plugin else ""
    if s.lookahead:
        d.note("lookahead", f"{s.lookahead}: {server} stops at the first request that does not fit{way}")
    if s.priority_ageing_s:
        d.note("priority_ageing_s", f"{server} does not age priorities{way}")
    if s.predicted_output_tokens:
        d.note("predicted_output_tokens", f"{server} has no shortest-job-first{way}")
    if s.tenants:
        d.note("tenants", f"{server} knows no tenants: weights and quotas belong to a gateway in front of it")
    if s.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES:
        d.note("admission_moment", f"between_launches is an experiment; {server} admits at step boundaries")
    if server == "vLLM":
        d.note("max_waiting", "vLLM's queue has no bound of its own; limit requests in front of it")
