"""Scrape several servers at once, in the background, without ever making a reader wait.

    one thread a target  ->  TargetState (immutable)  ->  Scraper.states()

A target that is dead, slow, restarted or something else keeps its own state and delays nobody. Secrets are held
by the scraper alone: states, labels and messages carry the address without user, password and query.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit, urlunsplit

import httpx

from core.attach.interval import Interval, compare
from core.attach.page import MAX_PAGE_BYTES, MetricsPageError, ServerPage, parse_page
from core.clock import Clock, WallClock
from core.cost_model import CostModel
from core.errors import ConfigError

MAX_TARGETS = 256
HISTORY_INTERVALS = 900


@dataclass(frozen=True)
class Target:
    """One server to watch.

    Attributes:
        url: address of its metrics page; "/metrics" is added to an address without a path.
        headers: sent with each scrape, e.g. Authorization; never shown and not part of repr.
        max_num_seqs: the server's seats if known.
        model: cost model of the served geometry, for servers without FLOP counters.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_num_seqs: int | None = None
    model: CostModel | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{public_url(self.url)!r} is no address of a server; give http://host:port/metrics")
        if not self.name:
            raise ConfigError(f"the target {public_url(self.url)} needs a name")
        if parts.path in ("", "/"):
            object.__setattr__(self, "url", urlunsplit(parts._replace(path="/metrics")))


def public_url(url: str) -> str:
    """The address without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return urlunsplit((parts.scheme, host + port, parts.path, "", ""))


@dataclass(frozen=True)
class TargetState:
    """What is known of a target now.

    Attributes:
        status: "connecting", "live", "restarted", "slow", "unreachable" or "wrong page".
        message: one sentence for the page.
        scraped_s: when the latest good page came, on the scraper's clock; None before the first.
        intervals: newest last, at most `HISTORY_INTERVALS`.
    """

    name: str
    address: str
    status: str = "connecting"
    message: str = "first scrape under way"
    scraped_s: float | None = None
    page: ServerPage | None = None
    intervals: tuple[Interval, ...] = ()
    failures: int = 0


class _Watcher:
    """The thread of one target."""

    def __init__(self, target: Target, period_s: float, timeout_s: float, clock: Clock, stop: threading.Event) -> None:
        self.target = target
        self.state = TargetState(target.name, public_url(target.url))
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._stop = stop
        self._history: deque[Interval] = deque(maxlen=HISTORY_INTERVALS)
        self.thread = threading.Thread(target=self._run, name=f"scrape-{target.name}", daemon=True)

    def _run(self) -> None:
        with httpx.Client(timeout=self._timeout_s, follow_redirects=False, trust_env=False) as client:
            while not self._stop.is_set():
                started_s = self._clock.now()
                self.state = self._scrape(client)
                self._stop.wait(max(self._period_s - (self._clock.now() - started_s), 0.05))

    def _fail(self, status: str, message: str) -> TargetState:
        return replace(self.state, status=status, message=message, failures=self.state.failures + 1)

    def _scrape(self, client: httpx.Client) -> TargetState:
        address = self.state.address
        try:
            page = parse_page(self._fetch(client))
        except httpx.TimeoutException:
            return self._fail("slow", f"{address} did not answer within {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return self._fail("unreachable", f"{address} cannot be reached ({type(error).__name__})")
        except MetricsPageError as error:
            return self._fail("wrong page", f"{address}: {error}")
        now_s = self._clock.now()
        before = self.state
        status, message = "live", ""
        if before.page is not None and before.scraped_s is not None and now_s > before.scraped_s:
            interval = compare(
                before.scraped_s,
                before.page,
                now_s,
                page,
                model=self.target.model,
                max_num_seqs=self.target.max_num_seqs,
            )
            self._history.append(interval)
            if interval.restarted:
                status, message = "restarted", f"{address} was restarted; its counters began again"
        return replace(
            before, status=status, message=message, scraped_s=now_s, page=page, intervals=tuple(self._history), failures=0
        )

    def _fetch(self, client: httpx.Client) -> str:
        """The page's text, at most `MAX_PAGE_BYTES` and within the time limit for each read."""
        deadline_s = self._clock.now() + self._timeout_s
        parts: list[bytes] = []
        size = 0
        with client.stream("GET", self.target.url, headers=dict(self.target.headers)) as response:
            if response.status_code != 200:
                raise MetricsPageError(f"the server answered {response.status_code}; 200 with a metrics page is needed")
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_PAGE_BYTES:
                    raise MetricsPageError(f"the page is longer than {MAX_PAGE_BYTES // 2**20} MiB")
                if self._clock.now() > deadline_s:
                    raise httpx.ReadTimeout("the page came too slowly")
        return b"".join(parts).decode("utf-8", errors="replace")


class Scraper:
    """Watches targets until closed.

    Args:
        period_s: time between two scrapes of one target, at least 0.25 s.
        timeout_s: most time for one scrape.

    Raises:
        ConfigError: for too many targets, a name used twice, or a period out of range.
    """

    def __init__(
        self, targets: Sequence[Target], *, period_s: float = 2.0, timeout_s: float = 2.0, clock: Clock | None = None
    ) -> None:
        names = [t.name for t in targets]
        if len(targets) > MAX_TARGETS:
            raise ConfigError(f"{len(targets)} targets; at most {MAX_TARGETS} are watched at once")
        if len(set(names)) != len(names):
            raise ConfigError(f"a target's name is used twice in {names}")
        if not 0.25 <= period_s <= 3600 or not 0.1 <= timeout_s <= 60:
            raise ConfigError(f"period {period_s} s and time limit {timeout_s} s; give 0.25 to 3600 s and 0.1 to 60 s")
        self._stop = threading.Event()
        self._watchers = [_Watcher(t, period_s, timeout_s, clock or WallClock(), self._stop) for t in targets]
        for watcher in self._watchers:
            watcher.thread.start()

    def states(self) -> tuple[TargetState, ...]:
        """The latest state of each target, without waiting."""
        return tuple(w.state for w in self._watchers)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all threads; calling it twice is harmless."""
        self._stop.set()
        for watcher in self._watchers:
            watcher.thread.join(timeout_s)


def targets_from_prometheus(
    base_url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> tuple[Target, ...]:
    """Active targets that a Prometheus server scrapes (GET /api/v1/targets), one `Target` each.

    The headers go to the Prometheus server only.

    Raises:
        ConfigError: if the server cannot be reached, answers otherwise, or scrapes nothing.
    """
    address = public_url(base_url)
    try:
        response = httpx.get(
            base_url.rstrip("/") + "/api/v1/targets",
            params={"state": "active"},
            headers=dict(headers or {}),
            timeout=timeout_s,
            trust_env=False,
        )
        response.raise_for_status()
        active = response.json()["data"]["activeTargets"]
        found = [(str(t["labels"].get("instance") or t["scrapeUrl"]), str(t["scrapeUrl"])) for t in active]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{address} gave no list of targets ({type(error).__name__}); is it a Prometheus server?") from error
    if not found:
        raise ConfigError(f"{address} scrapes no active target; nothing to watch")
    return tuple(Target(name=name, url=url) for name, url in found[:MAX_TARGETS])
