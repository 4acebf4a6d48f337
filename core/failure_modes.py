"""The failure modes of iteration-level batching (and of the fixed batch), each as a run that shows it.

A `FailureMode` is a load, the knobs under which it goes wrong, the one knob that cures it, and the detector
that must find it in the first run and not in the second. The load is the same seeded one in both runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.config import CacheConfig, SchedulerConfig, replace_knobs
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind, TenantShare
from core.model_spec import ModelSpec


@dataclass(frozen=True)
class FailureMode:
    """One named scenario.

    Attributes:
        key: short name for links.
        detector: name in `core.detectors.DETECTORS`.
        question: what a user asks when it bites.
        look_at: where the figure shows it.
        mechanism: one sentence on why it happens.
        load: the seeded load of both runs.
        scheduler, cache: knobs of the sick run, over the defaults of those classes.
        engine: knobs of EngineConfig for both runs, where the present model cannot show it; the engine starts again for
            them and once more for what ran before.
        cure_scheduler, cure_cache, cure_load: what the cure changes, and nothing else.
        cure_words: the one knob, in words.
        compare: the summary value to compare, e.g. "output_tokens_per_s".
    """

    key: str
    title: str
    detector: str
    question: str
    mechanism: str
    look_at: str
    load: LoadSpec
    scheduler: Mapping[str, Any]
    cache: Mapping[str, Any]
    cure_words: str
    compare: str
    cure_scheduler: Mapping[str, Any] = field(default_factory=dict)
    cure_cache: Mapping[str, Any] = field(default_factory=dict)
    cure_load: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def configs(self, cured: bool) -> tuple[SchedulerConfig, CacheConfig, LoadSpec]:
        """Knobs and load of the sick or of the cured run.

        Raises:
            ConfigError: never for the built-in modes; a test builds all of them.
        """
        scheduler = {**self.scheduler, **(self.cure_scheduler if cured else {})}
        cache = {**self.cache, **(self.cure_cache if cured else {})}
        load = replace_knobs(self.load, **self.cure_load) if cured and self.cure_load else self.load
        return SchedulerConfig(**scheduler), CacheConfig(**cache), load


def _burst(size: int, prompt: LengthSpec, output: LengthSpec, **more: Any) -> LoadSpec:
    base: dict[str, Any] = {
        "process": ArrivalProcess.BURST,
        "burst_size": size,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "prompt_kind": PromptKind.TEXT,
        "ignore_eos": True,
        "seed": 7,
    }
    return LoadSpec(**{**base, **more})


SMALL = ModelSpec(
    name="small-synthetic", vocab_size=512, hidden_size=384, intermediate_size=1024, num_layers=8, num_heads=4, num_kv_heads=2,
    head_dim=96, max_model_len=512, tie_word_embeddings=True, bos_token_id=None, eos_token_ids=(0,),
)  # fmt: skip
"""A model whose step is so short that the host's share of it shows: 11 million weights, mostly read from cache."""

_RAGGED = LengthSpec.empirical([24, 24, 24, 36, 36, 48, 48, 288])
_SHORT = LengthSpec.uniform(8, 24)

FAILURE_MODES: tuple[FailureMode, ...] = (
    FailureMode(
        key="ragged-tail",
        title="Ragged tail",
        detector="ragged tail",
        question="Why does throughput fall although every seat is taken?",
        mechanism="A batch that is fixed at admission keeps the seats of finished requests until its longest member ends.",
        look_at="The lane before: grey work on rows that have ended",
        load=_burst(32, LengthSpec.fixed(24), _RAGGED, seed=95),  # a long output in each of the four fixed batches
        scheduler={"batch_policy": "fixed", "max_num_seqs": 8, "max_num_batched_tokens": 512},
        cache={"num_blocks": 256, "enable_prefix_caching": False},
        cure_scheduler={"batch_policy": "chunked"},
        cure_words="batch_policy: fixed to chunked (re-decided at every step)",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="padding-waste",
        title="Padding waste",
        detector="padding waste",
        question="Why does a short prompt cost as much as the longest one beside it?",
        mechanism="A rectangular batch pads every prompt to the longest; the padded positions are computed and thrown away.",
        look_at="The lane before: grey positions of the prefill steps",
        load=_burst(64, LengthSpec.empirical([12, 12, 16, 16, 20, 24, 24, 224]), LengthSpec.fixed(12)),
        scheduler={"batch_policy": "fixed", "max_num_seqs": 8, "max_num_batched_tokens": 512},
        cache={"num_blocks": 256, "enable_prefix_caching": False},
        cure_scheduler={"batch_policy": "chunked"},
        cure_words="batch_policy: fixed to chunked (one query token a decode row, nothing padded)",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="starvation",
        title="Starvation under a full queue",
        detector="starvation",
        question="Why do short requests wait although the machine is busy?",
        mechanism="Under first come, first served, long outputs hold their blocks for their whole generation; the rest waits.",
        look_at="Live: ages in the waiting set; the table: TTFT",
        load=_burst(
            28,
            LengthSpec.fixed(16),
            LengthSpec.empirical([160, 8, 8, 8, 8, 8, 8]),
            tenants=(TenantShare("batch", 3.0), TenantShare("chat", 1.0)),
            seed=20,
        ),
        scheduler={"max_num_seqs": 4, "queue_policy": "fcfs", "admission_policy": "reserve"},
        cache={"num_blocks": 64, "enable_prefix_caching": False},
        cure_scheduler={"queue_policy": "shortest_job"},
        cure_words="queue_policy: fcfs to shortest_job (or wfq, which shares by tenant)",
        compare="ttft_p50_s",
    ),
    FailureMode(
        key="prefill-interference",
        title="Prefill interference",
        detector="prefill interference",
        question="Why do tokens stutter whenever someone sends a long prompt?",
        mechanism="A whole prompt inside a decode step lengthens that step for every request that is already generating.",
        look_at="Live: spikes in the batch timeline; the table: ITL p99",
        load=LoadSpec(
            process=ArrivalProcess.CONSTANT,
            rate_per_s=3.0,
            num_requests=24,
            prompt_tokens=LengthSpec.empirical([16, 16, 384]),
            output_tokens=LengthSpec.fixed(48),
            prompt_kind=PromptKind.TEXT,
            ignore_eos=True,
            seed=7,
        ),
        scheduler={"batch_policy": "whole_prompts", "max_num_seqs": 16, "max_num_batched_tokens": 512},
        cache={"num_blocks": 512, "enable_prefix_caching": False},
        cure_scheduler={"batch_policy": "chunked", "max_num_batched_tokens": 16},
        cure_words="batch_policy: whole_prompts to chunked, with a budget of 16 tokens a step",
        compare="itl_p99_s",
    ),
    FailureMode(
        key="memory-ceiling",
        title="Memory ceiling",
        detector="memory ceiling",
        question="Why does the batch stop growing although seats are free?",
        mechanism="Once every block is taken, KV bytes set the batch; arithmetic units left over do not matter.",
        look_at="KV blocks: no free cell; status bar: bound by KV memory",
        load=_burst(32, LengthSpec.fixed(48), LengthSpec.fixed(48)),
        scheduler={"max_num_seqs": 32, "admission_policy": "reserve"},
        cache={"num_blocks": 48, "enable_prefix_caching": False},
        cure_cache={"num_blocks": 256},
        cure_words="num_blocks: 48 to 256",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="preemption-thrash",
        title="Preemption thrash",
        detector="preemption thrash",
        question="Why is the engine busy while few requests finish?",
        mechanism="Admitted on demand into a pool far below demand, requests evict one another and recompute what they had.",
        look_at="Live: preemption marks; Scheduler: victims and beneficiaries",
        load=_burst(20, LengthSpec.fixed(16), LengthSpec.fixed(64)),
        scheduler={"max_num_seqs": 20, "admission_policy": "on_demand"},
        cache={"num_blocks": 36, "enable_prefix_caching": False},
        cure_scheduler={"admission_policy": "reserve"},
        cure_words="admission_policy: on_demand to reserve",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="head-of-line",
        title="Head-of-line blocking",
        detector="head-of-line blocking",
        question="Why does a request that fits wait behind one that does not?",
        mechanism="Strict order stops at the first request that finds too few blocks; smaller ones behind it wait too.",
        look_at="Live: why the head of the queue waits, and the blocks still free",
        # this seed draws one long prompt: with two, the second waits for memory whatever is done
        load=_burst(24, LengthSpec.empirical([16] * 23 + [320]), LengthSpec.uniform(8, 96), seed=23),
        scheduler={"max_num_seqs": 16, "admission_policy": "reserve", "lookahead": 0, "max_num_batched_tokens": 512},
        cache={"num_blocks": 36, "enable_prefix_caching": False},
        cure_scheduler={"lookahead": 8},
        cure_words="lookahead: 0 to 8 (bounded by max_overtakes)",
        compare="ttft_p50_s",
    ),
    FailureMode(
        key="batch-churn",
        title="Batch churn",
        detector="batch churn",
        question="Why are captured shapes so seldom reused?",
        mechanism="Requests that join between two launches change the shape under way, so a captured graph is void.",
        look_at="Live: admissions in nearly every step; the detector: steps joined late",
        load=LoadSpec(
            process=ArrivalProcess.CLOSED_LOOP,
            users=12,
            num_requests=96,
            prompt_tokens=_SHORT,
            output_tokens=LengthSpec.uniform(1, 5),
            prompt_kind=PromptKind.TEXT,
            ignore_eos=True,
            seed=7,
        ),
        scheduler={"max_num_seqs": 16, "admission_moment": "between_launches"},
        cache={"num_blocks": 256, "enable_prefix_caching": False},
        cure_scheduler={"admission_moment": "step_boundary"},
        cure_words="admission_moment: between_launches to step_boundary",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="host-bound",
        title="Host-bound small model",
        detector="host-bound",
        question="Why does a faster device not help?",
        mechanism="On a small model a step is short, and deciding, preparing and sampling on the host are much of each token.",
        look_at="Roofline: host-cost share. Both runs start a small synthetic model; the present model comes back afterwards",
        load=_burst(64, LengthSpec.fixed(16), LengthSpec.fixed(32)),
        scheduler={"max_num_seqs": 1, "max_num_batched_tokens": 1024},
        cache={"num_blocks": 256, "enable_prefix_caching": False},
        engine={"model": "synthetic", "spec": SMALL},
        cure_scheduler={"max_num_seqs": 64},
        cure_words="max_num_seqs: 1 to 64 (the fixed host cost is shared by more rows)",
        compare="output_tokens_per_s",
    ),
    FailureMode(
        key="cache-thrash",
        title="Prefix-cache thrash",
        detector="cache thrash",
        question="Why does the prefix cache stop hitting under load?",
        mechanism="More different prefixes than the pool can keep: each admission evicts the prefix that the next one needs.",
        look_at="KV blocks: cached cells; tiles: prefix hit rate",
        load=LoadSpec(
            process=ArrivalProcess.CLOSED_LOOP,
            users=3,
            num_requests=60,
            prompt_tokens=LengthSpec.uniform(104, 120),
            output_tokens=LengthSpec.fixed(6),
            prompt_kind=PromptKind.TEXT,
            shared_prefix_share=1.0,
            shared_prefix_tokens=96,
            num_shared_prefixes=8,
            ignore_eos=True,
            seed=7,
        ),
        scheduler={"max_num_seqs": 3},
        cache={"num_blocks": 30, "enable_prefix_caching": True},
        cure_cache={"num_blocks": 160},
        cure_words="num_blocks: 30 to 160 (all prefixes stay resident)",
        compare="ttft_p50_s",
    ),
)


def failure_mode(key: str) -> FailureMode:
    """Look a mode up by its key.

    Raises:
        KeyError: naming the known keys.
    """
    for mode in FAILURE_MODES:
        if mode.key == key:
            return mode
    raise KeyError(f"no failure mode {key!r}; known: {', '.join(m.key for m in FAILURE_MODES)}")
