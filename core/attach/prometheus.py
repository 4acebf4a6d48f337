"""Targets that a Prometheus server knows: which of its instances serve a model, and where they are scraped.

GET /api/v1/query    instances that export a metric of a serving engine (one query, evaluated there)
GET /api/v1/targets  their addresses; without such an instance, every active target

Headers go to the Prometheus server only, never to the targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from core.attach.names import GAUGES
from core.attach.scraper import MAX_TARGETS, Target, public_url
from core.errors import ConfigError

SERVING = "|".join(dict.fromkeys(name.partition("{")[0] for word in ("running", "waiting") for name in GAUGES[word]))
QUERY = f'group by (instance, job) ({{__name__=~"{SERVING}"}})'


def _get(base_url: str, path: str, params: Mapping[str, str], headers: Mapping[str, str], timeout_s: float) -> Any:
    address = public_url(base_url)
    try:
        response = httpx.get(
            base_url.rstrip("/") + path, params=dict(params), headers=dict(headers), timeout=timeout_s, trust_env=False
        )
        response.raise_for_status()
        return response.json()["data"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{address} gave no list of targets ({type(error).__name__}); is it a Prometheus server?") from error


def _serving(data: Any) -> set[tuple[str, str]]:
    """(instance, job) of the instances that export a metric of a serving engine."""
    rows = data.get("result", []) if isinstance(data, dict) else []
    return {(str(r["metric"].get("instance", "")), str(r["metric"].get("job", ""))) for r in rows if "metric" in r}


def targets_from_prometheus(
    base_url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> tuple[Target, ...]:
    """Active targets of a Prometheus server that serve a model, one `Target` each, named by their instance.

    Raises:
        ConfigError: if the server cannot be reached, answers otherwise, or scrapes nothing.
    """
    address, sent = public_url(base_url), dict(headers or {})
    data = _get(base_url, "/api/v1/targets", {"state": "active"}, sent, timeout_s)
    try:
        active = [
            (str(t["labels"].get("instance") or t["scrapeUrl"]), str(t["labels"].get("job", "")), str(t["scrapeUrl"]))
            for t in data["activeTargets"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{address} gave no list of targets ({type(error).__name__}); is it a Prometheus server?") from error
    if not active:
        raise ConfigError(f"{address} scrapes no active target; nothing to watch")
    try:
        serving = _serving(_get(base_url, "/api/v1/query", {"query": QUERY}, sent, timeout_s))
    except ConfigError:
        serving = set()  # a proxy that passes the list of targets only
    chosen = [row for row in active if (row[0], row[1]) in serving] or active
    source = f"Prometheus at {address}"
    unique = {name if sum(n == name for n, _, _ in chosen) == 1 else f"{job} {name}": url for name, job, url in chosen}
    return tuple(Target(name=name, url=url, source=source) for name, url in list(unique.items())[:MAX_TARGETS])
