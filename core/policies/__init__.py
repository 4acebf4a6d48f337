"""Every policy by the name of its knob, for the scheduler and for the page that explains them.

catalogue()["queue_policy"] -> the objects to choose from, each with .value, .label and .explain
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from core.policies.batching import BATCH_RULES
from core.policies.memory import ADMISSION_MOMENTS, ADMISSION_RULES, EVICTION_POLICIES, PREEMPTION_MODES, VICTIM_RULES
from core.policies.queue_order import QUEUE_ORDERS


class Policy(Protocol):
    """What a page needs of a policy."""

    @property
    def value(self) -> StrEnum: ...

    @property
    def label(self) -> str: ...

    @property
    def explain(self) -> str: ...


def catalogue() -> Mapping[str, tuple[Policy, ...]]:
    """All choices of each policy knob of SchedulerConfig and CacheConfig."""
    return {
        "queue_policy": tuple(QUEUE_ORDERS.values()),
        "batch_policy": tuple(BATCH_RULES.values()),
        "admission_policy": tuple(ADMISSION_RULES.values()),
        "preemption_mode": tuple(PREEMPTION_MODES.values()),
        "victim_policy": tuple(VICTIM_RULES.values()),
        "eviction_policy": tuple(EVICTION_POLICIES.values()),
        "admission_moment": tuple(ADMISSION_MOMENTS.values()),
    }
