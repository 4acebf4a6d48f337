"""Forks: the same seeded arrivals on the real engine under two configurations, measured side by side.

    first   settings A  +  load   ->  steps, requests, tokens
    second  settings B  +  load   ->  steps, requests, tokens       the n-th request has the same prompt and lengths in both

A fork runs as a failure mode does (`core.comparison`); it has no fault to find, so no detector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from core.config import OFF, CacheConfig, SchedulerConfig, replace_knobs
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind


@dataclass(frozen=True)
class Fork:
    """Two configurations and one load.

    Attributes:
        key: short name for links.
        names: what the two sides are called, e.g. ("fixed", "continuous").
        compare: the summary value that the fork is about, e.g. "output_tokens_per_s".
        first, second: knobs and pool of each side.
    """

    key: str
    title: str
    question: str
    names: tuple[str, str]
    load: LoadSpec
    first: tuple[SchedulerConfig, CacheConfig]
    second: tuple[SchedulerConfig, CacheConfig]
    compare: str = "output_tokens_per_s"
    look_at: str = ""
    detector: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)

    def configs(self, cured: bool) -> tuple[SchedulerConfig, CacheConfig, LoadSpec]:
        """Knobs, pool and load of the first side, or (`cured`) of the second."""
        return (*(self.second if cured else self.first), self.load)

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """(knob, first, second) of every knob in which the sides differ."""
        (knobs, pool), (others, other_pool) = self.first, self.second
        pairs = [(f.name, getattr(knobs, f.name), getattr(others, f.name)) for f in fields(knobs)]
        pairs += [(f.name, getattr(pool, f.name), getattr(other_pool, f.name)) for f in fields(pool)]
        found = [(name, *[OFF if v is None else str(v) for v in values]) for name, *values in pairs]
        return tuple((n, a, b) for n, a, b in found if a != b)


Side = tuple[SchedulerConfig, CacheConfig]


def _side(knobs: Mapping[str, Any], **cache: Any) -> Side:
    """One side; prefix reuse is off, so that both sides do the same work."""
    return SchedulerConfig(**knobs), CacheConfig(enable_prefix_caching=False, **cache)


def _burst(size: int, prompt: LengthSpec, output: LengthSpec, seed: int = 11) -> LoadSpec:
    return LoadSpec(
        process=ArrivalProcess.BURST,
        burst_size=size,
        prompt_tokens=prompt,
        output_tokens=output,
        prompt_kind=PromptKind.TEXT,
        ignore_eos=True,
        seed=seed,
    )


_RAGGED = LengthSpec.empirical([8, 10, 12, 12, 16, 20, 24, 112])

FORKS: tuple[Fork, ...] = (
    Fork(
        key="fixed",
        title="Fixed against continuous",
        question="What does it cost to fix the batch at admission?",
        names=("fixed batch", "continuous"),
        load=_burst(24, LengthSpec.empirical([12, 16, 24, 96]), _RAGGED),
        look_at="Hatched grey is work on padding and on rows that have ended; the continuous lane has none and ends earlier.",
        first=_side({"batch_policy": "fixed", "max_num_seqs": 8, "max_num_batched_tokens": 1024}, num_blocks=512),
        second=_side({"batch_policy": "chunked", "max_num_seqs": 8, "max_num_batched_tokens": 1024}, num_blocks=512),
    ),
    Fork(
        key="swap",
        title="Recompute against swap",
        question="Is it cheaper to compute lost keys and values again, or to move them to host memory and back?",
        names=("recompute", "swap"),
        load=_burst(16, LengthSpec.fixed(64), LengthSpec.fixed(48)),
        look_at="Preemptions happen in both; recompute pays in prefill tokens (orange), swap in copies.",
        first=_side({"max_num_seqs": 16, "max_num_batched_tokens": 256}, num_blocks=64, num_swap_blocks=128),
        second=_side(
            {"max_num_seqs": 16, "max_num_batched_tokens": 256, "preemption_mode": "swap"}, num_blocks=64, num_swap_blocks=128
        ),
    ),
    Fork(
        key="chunks",
        title="Small against large chunks",
        question="How small must a chunk be before a long prompt stops disturbing the others?",
        names=("budget 512", "budget 48"),
        load=LoadSpec(
            process=ArrivalProcess.CONSTANT,
            rate_per_s=2.0,
            num_requests=20,
            prompt_tokens=LengthSpec.empirical([16, 16, 16, 400]),
            output_tokens=LengthSpec.fixed(40),
            prompt_kind=PromptKind.TEXT,
            ignore_eos=True,
            seed=11,
        ),
        compare="itl_p99_s",
        look_at="ITL p99 falls with the chunk, TTFT of the long prompts rises.",
        first=_side({"max_num_seqs": 16, "max_num_batched_tokens": 512}, num_blocks=512),
        second=_side({"max_num_seqs": 16, "max_num_batched_tokens": 48}, num_blocks=512),
    ),
    Fork(
        key="queue",
        title="First come against shortest job",
        question="Who waits less if short requests go first?",
        names=("fcfs", "shortest job"),
        load=_burst(24, LengthSpec.fixed(24), LengthSpec.empirical([12, 12, 12, 128])),
        compare="ttft_p50_s",
        look_at="TTFT p50 falls, TTFT p99 rises: somebody pays.",
        first=_side({"max_num_seqs": 4, "max_num_batched_tokens": 256}, num_blocks=512),
        second=_side({"max_num_seqs": 4, "max_num_batched_tokens": 256, "queue_policy": "shortest_job"}, num_blocks=512),
    ),
    Fork(
        key="admission",
        title="On demand against reserve",
        question="Admit at once and risk preemption, or wait until the whole request fits?",
        names=("on demand", "reserve"),
        load=_burst(20, LengthSpec.fixed(24), LengthSpec.fixed(64)),
        look_at="On demand keeps more rows until memory is full, then evicts; reserve never preempts.",
        first=_side({"max_num_seqs": 20, "max_num_batched_tokens": 256}, num_blocks=56),
        second=_side({"max_num_seqs": 20, "max_num_batched_tokens": 256, "admission_policy": "reserve"}, num_blocks=56),
    ),
)


def fork(key: str) -> Fork:
    """A built-in fork by its key.

    Raises:
        KeyError: naming the known keys.
    """
    for one in FORKS:
        if one.key == key:
            return one
    raise KeyError(f"no fork {key!r}; known: {', '.join(f.key for f in FORKS)}")


def fork_of(
    scheduler: SchedulerConfig, cache: CacheConfig, load: LoadSpec, changes: Mapping[str, Any], num_requests: int
) -> Fork:
    """The live settings against the same with some knobs changed, under a finite copy of the live load.

    Raises:
        ConfigError: for a knob that does not exist or a value out of range.
    """
    own = set(CacheConfig.__dataclass_fields__)
    second = (
        replace_knobs(scheduler, **{n: v for n, v in changes.items() if n not in own}),
        replace_knobs(cache, **{n: v for n, v in changes.items() if n in own}),
    )
    single = load.process is ArrivalProcess.BURST and not load.burst_period_s
    finite = load if single else replace(load, num_requests=num_requests)
    return Fork(
        key="live",
        title="Live settings against others",
        question="Would these settings be better here, measured and not predicted?",
        names=("as live", "changed"),
        load=finite,
        first=(scheduler, cache),
        second=second,
        look_at="The same arrivals; the difference is the knobs, and what else this machine does meanwhile.",
    )
