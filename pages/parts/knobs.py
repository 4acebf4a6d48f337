"""The knobs of the sidebar as a table: group, name in the configuration, label, and what it does, in vLLM's words.

Every help text names what SGLang and TensorRT-LLM call the same knob, where they have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from core.config import AdmissionPolicy, BatchPolicy, EvictionPolicy, PreemptionMode, QueuePolicy, VictimPolicy
from core.load_spec import ArrivalProcess, PromptKind


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob.

    Attributes:
        target: "scheduler", "cache" or "load": whose field `name` is.
        choices: an enumeration for a list to choose from; else the type of the present value decides the widget.
        step: increment of a number.
        off: what an empty field means, for a knob that may be None.
        only_for: for knobs of a load, the arrival processes that read it; empty means all.
    """

    target: str
    name: str
    label: str
    help: str
    choices: type[StrEnum] | None = None
    step: float | int = 1
    off: str = ""
    only_for: tuple[ArrivalProcess, ...] = ()


_RATED = (ArrivalProcess.POISSON, ArrivalProcess.GAMMA, ArrivalProcess.CONSTANT)
_CLOSED = (ArrivalProcess.CLOSED_LOOP,)
_BURST = (ArrivalProcess.BURST,)

LOAD = (
    Knob(
        "load",
        "process",
        "Arrivals",
        "Law of the arrival times. A closed loop asks again when its answer is there.",
        ArrivalProcess,
    ),
    Knob("load", "rate_per_s", "Requests per second", "Mean arrival rate.", step=0.1, only_for=_RATED),
    Knob(
        "load",
        "cv",
        "Burstiness (cv)",
        "Coefficient of variation of the gaps; 1 is Poisson.",
        step=0.5,
        only_for=(ArrivalProcess.GAMMA,),
    ),
    Knob("load", "users", "Users", "Users of the closed loop; each has at most one request under way.", only_for=_CLOSED),
    Knob("load", "think_time_s", "Think time (s)", "Mean pause of a user between two requests.", step=0.5, only_for=_CLOSED),
    Knob("load", "ramp_s", "Ramp (s)", "Users join one after another over so long; 0: all at once.", step=5.0, only_for=_CLOSED),
    Knob("load", "burst_size", "Burst size", "Requests that arrive at once.", only_for=_BURST),
    Knob("load", "burst_period_s", "Burst period (s)", "Seconds between bursts; 0 is a single burst.", step=1.0, only_for=_BURST),
    Knob("load", "prompt_kind", "Prompts", "Windows of text, questions in the chat template, or random tokens.", PromptKind),
    Knob(
        "load",
        "shared_prefix_share",
        "Share with a common prefix",
        "Share of the requests that begin with the same system prompt; what prefix caching can reuse.",
        step=0.1,
    ),
    Knob("load", "ignore_eos", "Ignore the end token", "Outputs have exactly the drawn length."),
)

SCHEDULER = (
    Knob(
        "scheduler",
        "max_num_seqs",
        "max_num_seqs",
        "Seats: most requests in the batch. SGLang max_running_requests, TensorRT-LLM max_batch_size.",
    ),
    Knob(
        "scheduler",
        "max_num_batched_tokens",
        "max_num_batched_tokens",
        "Token budget of a step, prefill and decode together. SGLang max_prefill_tokens and chunked_prefill_size,"
        " TensorRT-LLM max_num_tokens.",
        step=64,
    ),
    Knob(
        "scheduler",
        "enable_chunked_prefill",
        "enable_chunked_prefill",
        "Split a prompt over steps so that decodes go on beside it. SGLang chunked_prefill_size (-1 is off).",
    ),
    Knob(
        "scheduler",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold",
        "Most prompt tokens of one request in a step; empty is no limit (0 in vLLM). SGLang chunked_prefill_size.",
        step=16,
        off="no limit",
    ),
    Knob(
        "scheduler",
        "batch_policy",
        "Batch composition",
        "What may share a step. fixed is the request-level baseline.",
        BatchPolicy,
    ),
    Knob(
        "scheduler",
        "queue_policy",
        "Queue order",
        "scheduling_policy in vLLM (fcfs, priority); SGLang schedule_policy (fcfs, lpm, ...).",
        QueuePolicy,
    ),
    Knob(
        "scheduler",
        "admission_policy",
        "Admission",
        "Blocks that must be free: prompt + max_tokens (reserve), or what the next chunk needs (on_demand, watermark)."
        " TensorRT-LLM GUARANTEED_NO_EVICT and MAX_UTILIZATION; SGLang schedule_conservativeness.",
        AdmissionPolicy,
    ),
    Knob("scheduler", "watermark", "watermark", "Share of the pool kept free at admission, for the watermark policy.", step=0.01),
    Knob(
        "scheduler",
        "victim_policy",
        "Preemption victim",
        "Which running request loses its blocks. SGLang: retraction.",
        VictimPolicy,
    ),
    Knob(
        "scheduler",
        "preemption_mode",
        "Preemption mode",
        "Recompute the lost KV (vLLM v1 knows only this), or swap it to host memory.",
        PreemptionMode,
    ),
    Knob(
        "scheduler",
        "lookahead",
        "Look past a blocked head",
        "Requests behind a blocked head that may be tried; 0 is strict order.",
    ),
)

MEMORY = (
    Knob(
        "cache",
        "num_blocks",
        "num_gpu_blocks",
        "KV blocks in the pool; num_gpu_blocks_override in vLLM, max_total_num_tokens in SGLang. A change empties the pool.",
        step=64,
    ),
    Knob("cache", "block_size", "block_size", "Tokens in a block. SGLang page_size, TensorRT-LLM tokens_per_block."),
    Knob(
        "cache",
        "enable_prefix_caching",
        "enable_prefix_caching",
        "Keep full blocks of finished requests for reuse. SGLang radix cache, TensorRT-LLM enable_block_reuse.",
    ),
    Knob("cache", "eviction_policy", "Eviction", "Which cached block goes first.", EvictionPolicy),
    Knob("cache", "num_swap_blocks", "Swap blocks", "Blocks of host memory for preemption by swap.", step=64),
)
