"""Who asks for what, and when: seeded arrival processes in virtual time.

    Poisson      gaps ~ Exponential(1 / rate)
    Gamma        gaps ~ Gamma(shape = 1 / cv^2, scale = cv^2 / rate): same rate, burstier as cv grows
    constant     gaps = 1 / rate
    closed loop  each of N users asks again `think time` after the last answer ended; they may join one after another
    burst        n requests at once, again every `burst_period_s` if that is not 0

Nothing here reads a clock: a `LoadGenerator` is asked what is due at a time that the caller names, so the
live engine and the simulator are fed by the same object. Same spec and same seed, same arrivals: the
n-th request always has the same prompt, lengths and tenant, whatever the rate does to its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind, TenantShare
from core.prompts import PromptSource

__all__ = ["Arrival", "ArrivalProcess", "LengthSpec", "LoadGenerator", "LoadSpec", "PromptKind", "TenantShare", "arrivals"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a load, before any engine has seen it.

    Attributes:
        time_s: when it is sent, seconds on the caller's clock.
        index: 0, 1, 2, ... in order of creation.
        user: the closed-loop user that waits for the answer; -1 in open loops.
        prefix_id: which shared prefix the prompt begins with; -1 for none.
    """

    time_s: float
    index: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    tenant: str = "default"
    priority: int = 0
    user: int = -1
    prefix_id: int = -1
    slo_ttft_s: float | None = None
    slo_itl_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


class LoadGenerator:
    """Arrivals of one spec; the caller asks what is due and, in a closed loop, says which answers have ended.

    Args:
        start_s: the caller's time at which the load begins.
    """

    def __init__(self, spec: LoadSpec, prompts: PromptSource, start_s: float = 0.0) -> None:
        self.spec = spec
        self._prompts = prompts
        streams = np.random.SeedSequence(spec.seed).spawn(6)
        self._time_rng, self._length_rng, self._tenant_rng, self._prompt_rng, self._think_rng, self._prefix_rng = (
            np.random.default_rng(s) for s in streams
        )
        weights = np.array([t.weight for t in spec.tenants], dtype=np.float64)
        self._tenant_edges = np.cumsum(weights / weights.sum())
        self._scheduled = 0  # arrivals that have a time
        self._created = 0  # arrivals that were handed out
        self._heap: list[tuple[float, int, int]] = []  # time, order, user
        self._schedule_first(start_s)

    def _schedule(self, time_s: float, user: int = -1) -> None:
        total = self.spec.total_requests
        if total is None or self._scheduled < total:
            heapq.heappush(self._heap, (time_s, self._scheduled, user))
            self._scheduled += 1

    def _schedule_first(self, start_s: float) -> None:
        if self.spec.is_closed:
            for user in range(self.spec.users):
                self._schedule(start_s + self.spec.ramp_s * user / self.spec.users + self._think(), user)
        elif self.spec.process is ArrivalProcess.BURST:
            for _ in range(self.spec.burst_size):
                self._schedule(start_s)
        else:
            self._schedule(start_s + self._gap())

    def _gap(self) -> float:
        rate = self.spec.rate_per_s
        if self.spec.process is ArrivalProcess.CONSTANT:
            return 1.0 / rate
        if self.spec.process is ArrivalProcess.GAMMA:
            square = self.spec.cv**2
            return float(self._time_rng.gamma(1.0 / square, square / rate))
        return float(self._time_rng.exponential(1.0 / rate))

    def _think(self) -> float:
        mean = self.spec.think_time_s
        return float(self._think_rng.exponential(mean)) if mean else 0.0

    @property
    def next_time_s(self) -> float | None:
        """Time of the next arrival; None if none is due before an answer ends (closed loop) or at all."""
        return self._heap[0][0] if self._heap else None

    @property
    def is_exhausted(self) -> bool:
        """True once every request of a finite load was handed out."""
        total = self.spec.total_requests
        return total is not None and self._created >= total

    def due(self, now_s: float, limit: int | None = None) -> list[Arrival]:
        """Hand out the arrivals whose time has come, earliest first, at most `limit` of them."""
        found: list[Arrival] = []
        while self._heap and self._heap[0][0] <= now_s and (limit is None or len(found) < limit):
            time_s, _, user = heapq.heappop(self._heap)
            found.append(self._make(time_s, user))
            self._schedule_after(time_s)
        return found

    def _schedule_after(self, time_s: float) -> None:
        if self.spec.is_closed:
            return
        if self.spec.process is not ArrivalProcess.BURST:
            self._schedule(time_s + self._gap())
        elif self.spec.burst_period_s and not self._heap:
            for _ in range(self.spec.burst_size):
                self._schedule(time_s + self.spec.burst_period_s)

    def on_end(self, user: int, now_s: float) -> None:
        """The answer to `user` ended (or was refused): the next question follows after the think time."""
        if self.spec.is_closed and user >= 0:
            self._schedule(now_s + self._think(), user)

    def _make(self, time_s: float, user: int) -> Arrival:
        spec = self.spec
        length = spec.prompt_tokens.sample(self._length_rng)
        max_tokens = spec.output_tokens.sample(self._length_rng)
        drawn = self._tenant_rng.random()
        at = int(np.searchsorted(self._tenant_edges, drawn, side="right")) if len(spec.tenants) > 1 else 0
        tenant = spec.tenants[min(at, len(spec.tenants) - 1)]
        prefix_id = -1
        # Drawn for every request, so that the share never moves the prompts of the others.
        wants_prefix = self._prefix_rng.random() < spec.shared_prefix_share
        which = int(self._prefix_rng.integers(spec.num_shared_prefixes)) if spec.num_shared_prefixes > 1 else 0
        if wants_prefix:
            prefix_id = which
            head = self._prompts.prefix(which, spec.shared_prefix_tokens)
            ids = head + self._prompts.cut(self._prompt_rng, max(length - len(head), 1))
        else:
            ids = self._prompts.cut(self._prompt_rng, length)
        self._created += 1
        return Arrival(
            time_s, self._created - 1, ids, max_tokens, tenant.name, tenant.priority, user, prefix_id,
            spec.slo_ttft_s, spec.slo_itl_s,
        )  # fmt: skip


def arrivals(spec: LoadSpec, prompts: PromptSource, start_s: float = 0.0) -> Iterator[Arrival]:
    """Iterate an open-loop load in order of time; endless unless the spec ends.

    Raises:
        ConfigError: for a closed loop, whose arrivals depend on completions.
    """
    if spec.is_closed:
        raise ConfigError("a closed loop has no fixed arrivals; drive a LoadGenerator and tell it which answers ended")
    generator = LoadGenerator(spec, prompts, start_s)
    while (time_s := generator.next_time_s) is not None:
        yield from generator.due(time_s)
