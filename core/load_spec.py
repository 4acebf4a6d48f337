"""What a synthetic load is: arrival process, lengths, tenants, prompts, targets, as one frozen and validated object.

A `LoadSpec` that exists makes sense; a change makes a new one with `core.config.replace_knobs`, so a bad value is
refused before anything has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from core.errors import ConfigError
from core.lengths import MAX_TOKENS, LengthSpec


class ArrivalProcess(StrEnum):
    """Law of the arrival times."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    CLOSED_LOOP = "closed_loop"
    BURST = "burst"


class PromptKind(StrEnum):
    """Where prompts come from."""

    TEXT = "text"  # windows of the project's own text
    QUESTIONS = "questions"  # chat prompts round one of the project's own questions
    RANDOM = "random"  # uniform token ids


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One tenant of the mix: its share of the requests is weight / sum of weights."""

    name: str = "default"
    weight: float = 1.0
    priority: int = 0


def _need(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _whole(name: str, value: Any, low: int, high: int) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    _need(ok, f"{name} is {value!r}; give a whole number from {low} to {high}")


def _real(name: str, value: Any, low: float, high: float) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    _need(ok, f"{name} is {value!r}; give a number from {low:g} to {high:g}")


_PROMPTS = LengthSpec.lognormal(96, 0.6, 16, 512)
_OUTPUTS = LengthSpec.lognormal(64, 0.6, 8, 256)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A synthetic load, validated.

    Attributes:
        rate_per_s: mean arrival rate of Poisson, Gamma and constant, requests/s.
        cv: coefficient of variation of the gaps, Gamma only (1 is Poisson, 0.1 nearly regular).
        users, think_time_s: closed loop; each user thinks for an exponential time of that mean (0: asks at once).
        ramp_s: closed loop; the users join one after another, evenly over so many seconds (0: all at once).
        burst_size, burst_period_s: requests in a burst; seconds between bursts (0: one burst).
        num_requests: the load ends after so many; None is endless (a single burst ends after burst_size).
        prompt_tokens, output_tokens: length distributions; the output length becomes max_tokens.
        shared_prefix_share: share of the requests whose prompt begins with a common prefix.
        shared_prefix_tokens: length of that prefix; such a prompt has at least one token more.
        num_shared_prefixes: how many different common prefixes there are (e.g. system prompts).
        ignore_eos: outputs have exactly the drawn length.
        temperature, top_p, top_k: sampling of every request.
        slo_ttft_s, slo_itl_s: targets of every request; None is no target.
    """

    process: ArrivalProcess = ArrivalProcess.POISSON
    rate_per_s: float = 1.0
    cv: float = 3.0
    users: int = 8
    think_time_s: float = 0.0
    ramp_s: float = 0.0
    burst_size: int = 16
    burst_period_s: float = 0.0
    num_requests: int | None = None
    prompt_tokens: LengthSpec = _PROMPTS
    output_tokens: LengthSpec = _OUTPUTS
    tenants: tuple[TenantShare, ...] = (TenantShare(),)
    prompt_kind: PromptKind = PromptKind.QUESTIONS
    shared_prefix_share: float = 0.0
    shared_prefix_tokens: int = 64
    num_shared_prefixes: int = 1
    ignore_eos: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    slo_ttft_s: float | None = None
    slo_itl_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("process", ArrivalProcess), ("prompt_kind", PromptKind)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; choose one of: {', '.join(kind)}") from None
        _real("rate_per_s", self.rate_per_s, 1e-6, 100_000)
        _real("cv", self.cv, 0.01, 100)
        _whole("users", self.users, 1, 100_000)
        _real("think_time_s", self.think_time_s, 0, 1e6)
        _real("ramp_s", self.ramp_s, 0, 1e6)
        _whole("burst_size", self.burst_size, 1, 100_000)
        _real("burst_period_s", self.burst_period_s, 0, 1e6)
        if self.num_requests is not None:
            _whole("num_requests", self.num_requests, 1, 1_000_000_000)
        for name in ("prompt_tokens", "output_tokens"):
            _need(isinstance(getattr(self, name), LengthSpec), f"{name} must be a LengthSpec, e.g. LengthSpec.fixed(64)")
        self._check_tenants()
        _real("shared_prefix_share", self.shared_prefix_share, 0, 1)
        _whole("shared_prefix_tokens", self.shared_prefix_tokens, 1, MAX_TOKENS)
        _whole("num_shared_prefixes", self.num_shared_prefixes, 1, 10_000)
        _real("temperature", self.temperature, 0, 100)
        _real("top_p", self.top_p, 0, 1)
        _whole("top_k", self.top_k, 0, MAX_TOKENS)
        for name in ("slo_ttft_s", "slo_itl_s"):
            if getattr(self, name) is not None:
                _real(name, getattr(self, name), 1e-6, 1e6)
        _whole("seed", self.seed, 0, 2**63 - 1)

    def _check_tenants(self) -> None:
        object.__setattr__(self, "tenants", tuple(self.tenants))
        _need(bool(self.tenants), "the tenant mix is empty; list at least one tenant")
        names = [t.name for t in self.tenants]
        _need(all(names), "a tenant of the mix needs a name that is not empty")
        _need(len(set(names)) == len(names), f"a tenant is listed twice in {names}")
        for t in self.tenants:
            _real(f"weight of tenant {t.name}", t.weight, 1e-6, 1e6)
            _whole(f"priority of tenant {t.name}", t.priority, -1_000_000, 1_000_000)

    @property
    def is_closed(self) -> bool:
        """True where arrivals depend on completions."""
        return self.process is ArrivalProcess.CLOSED_LOOP

    @property
    def total_requests(self) -> int | None:
        """Requests after which the load ends; None is endless."""
        if self.process is ArrivalProcess.BURST and self.burst_period_s == 0:
            return min(self.burst_size, self.num_requests or self.burst_size)
        return self.num_requests

    @property
    def label(self) -> str:
        """One line for a page and for captions."""
        how = {
            ArrivalProcess.POISSON: f"Poisson {self.rate_per_s:g} req/s",
            ArrivalProcess.GAMMA: f"Gamma {self.rate_per_s:g} req/s, cv {self.cv:g}",
            ArrivalProcess.CONSTANT: f"constant {self.rate_per_s:g} req/s",
            ArrivalProcess.CLOSED_LOOP: f"{self.users} users, think time {self.think_time_s:g} s",
            ArrivalProcess.BURST: f"burst of {self.burst_size}"
            + (f" every {self.burst_period_s:g} s" if self.burst_period_s else ""),
        }[self.process]
        return f"{how}; prompts {self.prompt_tokens.label}; outputs {self.output_tokens.label}; seed {self.seed}"
