"""What changes a run from outside, as data: enough, with the executor's answers, to repeat it.

    Submit  Cancel  SetPriority  SetScheduler  SetCache  Reset  Recover  Recompute

Each takes effect between two steps. `Engine` applies them, `RunRecorder` keeps them, `replay` gives them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.config import CacheConfig, SchedulerConfig
from core.request import SLO, SamplingParams


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request.

    Attributes:
        prompt_token_ids: the prompt; text becomes ids before it becomes a command.
        arrival_time_s: on the engine's clock; None is the moment at which the engine takes it.
        deadline_s: time on the engine's clock at which the request is cancelled; None for never.
        source: who asked: "load", "prompt", "api", "scenario".
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tenant: str = "default"
    priority: int = 0
    cache_salt: str | None = None
    use_prefix_cache: bool = True
    deadline_s: float | None = None
    slo: SLO = field(default_factory=SLO)
    source: str = "api"
    arrival_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request in whatever state it is."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Change the priority of a live request; a lower number is better."""

    request_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class SetScheduler:
    """Take other scheduler knobs."""

    config: SchedulerConfig


@dataclass(frozen=True, slots=True)
class SetCache:
    """Take other cache settings; a change of size recomputes what runs, nothing is lost."""

    config: CacheConfig


@dataclass(frozen=True, slots=True)
class Reset:
    """Cancel every request, empty the cache, leave a failed state."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Leave a failed state and try again; every request is kept and recomputed."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """The executor lost its memory between two steps: running requests are recomputed, the prefix index is empty."""


EngineCommand = Submit | Cancel | SetPriority | SetScheduler | SetCache | Reset | Recover | Recompute
