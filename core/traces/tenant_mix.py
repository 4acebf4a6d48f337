"""Several tenants as one load: each with a rate, a burstiness and lengths of its own, written down or as ServeGen fitted them.

tenant a  |.  . ..   .    .  |      gaps ~ Gamma(shape = 1 / cv^2, mean = 1 / rate), lengths lognormal
tenant b  |....        ...   |   +  -> one trace in order of time, tenants kept apart by name
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import TraceError
from core.traces.report import TraceReport
from core.traces.servegen import ServeGenClient, read_client
from core.traces.trace import Trace, merge

MAX_TENANTS = 64
SIGMA = 0.7
"""Spread of the lognormal lengths: the middle of what public traces show (p90 / p50 of about 2.5)."""


@dataclass(frozen=True, slots=True)
class TenantLaw:
    """What one tenant sends: mean rate, coefficient of variation of its gaps (1 is Poisson), median lengths in tokens."""

    name: str
    rate_per_s: float
    cv: float
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if not self.name:
            raise TraceError("a tenant has no name")
        for field, value, low, high in (
            ("requests/s", self.rate_per_s, 1e-6, 1e5), ("cv", self.cv, 0.01, 100.0),
            ("prompt tokens", self.prompt_tokens, 1, 1e6), ("output tokens", self.output_tokens, 1, 1e6),
        ):  # fmt: skip
            if not low <= value <= high:
                raise TraceError(f"tenant {self.name}: {field} is {value!r}; give a number from {low:g} to {high:g}")


EXAMPLE = (
    TenantLaw("chat", 0.6, 1.0, 96, 64),
    TenantLaw("code", 0.3, 4.0, 320, 16),
    TenantLaw("batch", 0.1, 8.0, 160, 128),
)
"""A mix in the manner of ServeGen: a steady tenant, a bursty one with long prompts, a rare one in bursts. Invented figures."""


def tenant_mix(laws: Sequence[TenantLaw], requests: int, seed: int = 0) -> Trace:
    """The first `requests` requests of all tenants together; same arguments, same requests.

    Raises:
        TraceError: without a tenant, with one listed twice, or with too many.
    """
    names = [law.name for law in laws]
    if not 1 <= len(laws) <= MAX_TENANTS or len(set(names)) != len(names):
        raise TraceError(f"a mix needs 1 to {MAX_TENANTS} tenants, each name once; found {names}")
    streams = np.random.SeedSequence(seed).spawn(len(laws))
    parts = [_one(law, requests, np.random.default_rng(stream)) for law, stream in zip(laws, streams, strict=True)]
    return merge(parts).head(requests)


def _one(law: TenantLaw, requests: int, rng: np.random.Generator) -> Trace:
    square = law.cv**2
    times = np.cumsum(rng.gamma(1.0 / square, square / law.rate_per_s, size=requests))
    lengths = [
        np.maximum(np.rint(median * np.exp(SIGMA * rng.standard_normal(requests))), 1).astype(np.int64)
        for median in (law.prompt_tokens, law.output_tokens)
    ]
    report = TraceReport(
        law.name, "tenant mix", "drawn from the tenants' laws", requests, 0, time_unit="s", time_note="as written down"
    )
    return Trace(report, lengths[0], lengths[1], times, tenants=(law.name,))


def pair_clients(files: Sequence[tuple[str, bytes]]) -> list[ServeGenClient]:
    """ServeGen clients from their files, two each, told apart and paired by name: NAME_rates*.csv and NAME_lengths*.json.

    Raises:
        TraceError: for a file that is neither, or one without its partner.
    """
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files:
        match = re.match(r"(.+?)[-_ ](rates?|lengths?|trace|dataset)", name, re.IGNORECASE)
        if match is None:
            raise TraceError(
                f"{name} is neither rates nor lengths; a client's files are called NAME_rates.csv and NAME_lengths.json"
            )
        kind = "rates" if match[2].lower() in ("rate", "rates", "trace") else "lengths"
        found.setdefault(match[1], {})[kind] = data
    for name, parts in found.items():
        if missing := {"rates", "lengths"} - set(parts):
            raise TraceError(f"client {name} has no file of {missing.pop()}; give both of its files")
    return [read_client(parts["rates"], parts["lengths"], name) for name, parts in sorted(found.items())]


def clients_trace(clients: Sequence[ServeGenClient], requests: int, rate_per_s: float, seed: int = 0) -> Trace:
    """The first `requests` requests of ServeGen clients together, from the first window on, at a mean rate of `rate_per_s`.

    The clients keep their shares and their burstiness; silent ones are left out.

    Raises:
        TraceError: if all are silent.
    """
    total = sum(c.mean_rate_per_s for c in clients)
    if not total > 0:
        raise TraceError("none of the clients sends anything")
    factor, seconds = rate_per_s / total, 1.5 * requests / rate_per_s
    parts = []
    for number, client in enumerate(c for c in clients if c.mean_rate_per_s > 0):
        span = len(client.rates) * client.window_s
        parts.append(client.generate(seed=seed + number, duration_s=min(max(seconds, client.window_s), span), rate=factor))
    return merge(parts).head(requests)
