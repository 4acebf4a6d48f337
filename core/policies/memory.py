"""Memory: how many blocks an admission must find, who loses blocks, what becomes of the KV.

reserve     ceil((prompt + max_tokens) / block_size)        held from the start, never preempted for memory
on demand   ceil((hit + next chunk) / block_size)           grows later, may be preempted
watermark   as on demand, leaving watermark * num_blocks    the room in which running requests grow
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from core.config import AdmissionMoment, AdmissionPolicy, EvictionPolicy, PreemptionMode, SchedulerConfig, VictimPolicy
from core.kv_cache_manager import KVCacheManager
from core.request import Request, RequestStatus

_arrival = attrgetter("arrival_index")


def worst_case_tokens(request: Request, max_model_len: int) -> int:
    """Most tokens the request can come to: prompt + max_tokens, cut at the model's length."""
    return min(request.num_prompt_tokens + request.sampling.max_tokens, max_model_len)


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """How many token slots a request must be given before it may join, and how many blocks must stay free."""

    value: AdmissionPolicy
    label: str
    explain: str

    def tokens_to_hold(self, request: Request, next_tokens: int, max_model_len: int) -> int:
        """Token slots to give at admission; `next_tokens` are the tokens in the cache after the first step.

        A preempted request comes back only when its whole context fits, otherwise it would be thrown out
        again half-way through its recompute.
        """
        if self.value is AdmissionPolicy.RESERVE:
            return max(worst_case_tokens(request, max_model_len), next_tokens)
        if request.status is RequestStatus.PREEMPTED:
            return max(request.num_tokens, next_tokens)
        return next_tokens

    def blocks_to_leave(self, config: SchedulerConfig, num_blocks: int, num_running: int) -> int:
        """Blocks that must stay free after the admission; none if nothing runs, so that a lone request can start."""
        if self.value is not AdmissionPolicy.WATERMARK or num_running == 0:
            return 0
        return math.ceil(config.watermark * num_blocks)


ADMISSION_RULES: dict[AdmissionPolicy, AdmissionRule] = {
    rule.value: rule
    for rule in (
        AdmissionRule(
            AdmissionPolicy.RESERVE,
            "Full reservation (GUARANTEED_NO_EVICT)",
            "A request joins when prompt + max_tokens fit and holds them from the start, so it is never preempted for memory"
            " and much of what it holds stays empty.",
        ),
        AdmissionRule(
            AdmissionPolicy.ON_DEMAND,
            "On demand (MAX_UTILIZATION)",
            "A request joins when its next chunk fits and grows block by block, so more requests run and some are preempted.",
        ),
        AdmissionRule(
            AdmissionPolicy.WATERMARK,
            "On demand with a watermark",
            "As on demand, but an admission leaves a share of the pool free, in which running requests can grow.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class VictimRule:
    """Which of several running requests loses its blocks; candidates are always junior to the beneficiary."""

    value: VictimPolicy
    label: str
    explain: str

    def key(self, request: Request, kv: KVCacheManager) -> tuple[int, ...]:
        """Sort key; the largest is the victim."""
        match self.value:
            case VictimPolicy.LATEST_ARRIVAL:
                return (request.arrival_index,)
            case VictimPolicy.LOWEST_PRIORITY:
                return (request.priority, request.arrival_index)
            case VictimPolicy.FEWEST_TOKENS_LOST:
                return (-request.num_computed_tokens, request.arrival_index)
            case VictimPolicy.MOST_BLOCKS_FREED:
                return (kv.num_exclusive(request.request_id), request.arrival_index)

    def pick(self, candidates: Sequence[Request], kv: KVCacheManager) -> Request:
        """The victim among candidates."""
        if self.value is VictimPolicy.LATEST_ARRIVAL:
            return max(candidates, key=_arrival)
        return max(candidates, key=lambda r: self.key(r, kv))


VICTIM_RULES: dict[VictimPolicy, VictimRule] = {
    rule.value: rule
    for rule in (
        VictimRule(
            VictimPolicy.LATEST_ARRIVAL,
            "Latest arrival",
            "The request that arrived last loses its blocks, which is what vLLM does.",
        ),
        VictimRule(
            VictimPolicy.LOWEST_PRIORITY,
            "Lowest priority",
            "The request with the highest priority number loses its blocks, the latest among equals.",
        ),
        VictimRule(
            VictimPolicy.FEWEST_TOKENS_LOST,
            "Fewest tokens lost",
            "The request with the fewest computed tokens loses its blocks, so the least work is done again.",
        ),
        VictimRule(
            VictimPolicy.MOST_BLOCKS_FREED,
            "Most blocks freed",
            "The request that gives back most blocks loses them, so the fewest requests are preempted.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that needs no code of its own beyond its name and sentence."""

    value: PreemptionMode | EvictionPolicy | AdmissionMoment
    label: str
    explain: str


PREEMPTION_MODES: dict[PreemptionMode, Choice] = {
    PreemptionMode.RECOMPUTE: Choice(
        PreemptionMode.RECOMPUTE,
        "Recompute",
        "A preempted request gives its blocks back and computes its tokens again when it resumes.",
    ),
    PreemptionMode.SWAP: Choice(
        PreemptionMode.SWAP,
        "Swap to host memory",
        "A preempted request's blocks are copied to host memory and back; if the swap space is full it is recomputed.",
    ),
}

EVICTION_POLICIES: dict[EvictionPolicy, Choice] = {
    EvictionPolicy.LRU: Choice(
        EvictionPolicy.LRU,
        "Least recently used (lru)",
        "The cached block that was released longest ago is overwritten first.",
    ),
    EvictionPolicy.LFU: Choice(
        EvictionPolicy.LFU,
        "Least frequently used (lfu)",
        "The cached block that was used least often is overwritten first, the one released longest ago among equals.",
    ),
}

ADMISSION_MOMENTS: dict[AdmissionMoment, Choice] = {
    AdmissionMoment.STEP_BOUNDARY: Choice(
        AdmissionMoment.STEP_BOUNDARY,
        "At step boundaries",
        "A request that arrives during a step joins the next one, so a step runs in the shape in which it was decided.",
    ),
    AdmissionMoment.BETWEEN_LAUNCHES: Choice(
        AdmissionMoment.BETWEEN_LAUNCHES,
        "Between launches (experiment)",
        "The batch is decided and prepared first, and requests that have arrived since join it before the launch, so what"
        " was prepared (or captured as a graph) for the decided shape is void.",
    ),
}
