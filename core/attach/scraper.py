"""Scrape several servers at once, in the background, without ever making a reader wait.

    one thread a target  ->  TargetState (immutable)  ->  Scraper.states()

A target that is dead, slow, restarted or something else keeps its own state and delays nobody. Secrets are held
by the scraper alone: states, labels and messages carry the address without user, password and query.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit, urlunsplit

import httpx

from core.attach.interval import FULL_KV_USAGE, Interval, compare
from core.attach.page import MAX_PAGE_BYTES, MetricsPageError, ServerPage, parse_page
from core.clock import Clock, WallClock
from core.cost_model import CostModel, cost_model
from core.devices import DeviceSpec
from core.errors import ConfigError
from core.models_catalog import guess_model

MAX_TARGETS = 256
HISTORY_INTERVALS = 900
RESTART_SHOWN_S = 20.0
SEATS_SEEN = 5

for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # below it they log addresses with their query, and headers


@dataclass(frozen=True)
class Target:
    """One server to watch.

    Attributes:
        url: address of its metrics page; "/metrics" is added to an address without a path.
        headers: sent with each scrape, e.g. Authorization; never shown and not part of repr.
        max_num_seqs: the server's seats if known.
        model: cost model of the served geometry, for servers without FLOP counters.
        device: what one engine runs on, for the roofline; None if not known.
        source: who named it: "" a person, else e.g. the Prometheus server that lists it.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_num_seqs: int | None = None
    model: CostModel | None = None
    device: DeviceSpec | None = None
    source: str = ""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{public_url(self.url)!r} is no address of a server; give http://host:port/metrics")
        if not self.name:
            raise ConfigError(f"the target {public_url(self.url)} needs a name")
        try:
            _ = parts.port
        except ValueError as error:
            raise ConfigError(f"the port of {public_url(self.url)!r} is no number from 0 to 65535") from error
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
        target: what is watched, without headers and with the public address only.
        seats: the server's seats: given, stated by itself, or the batch at which requests were seen to wait again and again.
        seats_inferred: True where nobody gave them.
        restarted_s: when a restart was last seen.
        scrape_s: how long the latest good scrape took.
    """

    name: str
    address: str
    status: str = "connecting"
    message: str = "first scrape under way"
    scraped_s: float | None = None
    page: ServerPage | None = None
    intervals: tuple[Interval, ...] = ()
    failures: int = 0
    target: Target | None = None
    seats: int | None = None
    seats_inferred: bool = False
    restarted_s: float | None = None
    scrape_s: float | None = None

    @property
    def latest(self) -> Interval | None:
        """The newest interval, None before there are two good scrapes."""
        return self.intervals[-1] if self.intervals else None


class _Seats:
    """Seats as they show: the same largest batch with a queue and with room in the pool, `SEATS_SEEN` times in a row."""

    def __init__(self) -> None:
        self._batch, self._times = 0, 0
        self.found: int | None = None

    def see(self, page: ServerPage) -> None:
        running, waiting = round(page.gauges.get("running", 0.0)), page.gauges.get("waiting", 0.0)
        if waiting <= 0 or not running or page.gauges.get("kv_usage", 0.0) >= FULL_KV_USAGE:
            return
        self._times = self._times + 1 if running == self._batch else 1
        self._batch = running
        if self.found is not None and running > self.found:
            self.found = None
        if self._times >= SEATS_SEEN:
            self.found = running


class _Watcher:
    """The thread of one target."""

    def __init__(self, target: Target, period_s: float, timeout_s: float, clock: Clock) -> None:
        self.target = target
        shown = replace(target, url=public_url(target.url), headers={})
        self.state = TargetState(target.name, public_url(target.url), target=shown, seats=target.max_num_seqs)
        self.period_s = period_s
        self._timeout_s = timeout_s
        self._clock = clock
        self.stop = threading.Event()
        self._history: deque[Interval] = deque(maxlen=HISTORY_INTERVALS)
        self._seats = _Seats()
        self.thread = threading.Thread(target=self._run, name=f"scrape-{target.name}", daemon=True)

    def _run(self) -> None:
        with httpx.Client(timeout=self._timeout_s, follow_redirects=False, trust_env=False) as client:
            while not self.stop.is_set():
                started_s = self._clock.now()
                self.state = self._scrape(client)
                self.stop.wait(max(self.period_s - (self._clock.now() - started_s), 0.05))

    def _fail(self, status: str, message: str) -> TargetState:
        return replace(self.state, status=status, message=message, failures=self.state.failures + 1)

    def _scrape(self, client: httpx.Client) -> TargetState:
        address = self.state.address
        began_s = self._clock.now()
        try:
            page = parse_page(self._fetch(client))
        except httpx.TimeoutException:
            return self._fail("slow", f"{address} did not answer within {self._timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            return self._fail("unreachable", f"{address} cannot be reached ({type(error).__name__})")
        except MetricsPageError as error:
            return self._fail("wrong page", f"{address}: {error}")
        return self._took(page, began_s, self._clock.now())

    def _took(self, page: ServerPage, began_s: float, now_s: float) -> TargetState:
        """The state after a good scrape."""
        before, given = self.state, self.target.max_num_seqs or page.max_num_seqs
        self._seats.see(page)
        model = self.target.model or self._guessed(page)
        seats = given if given is not None else self._seats.found
        restarted_s = before.restarted_s
        if before.page is not None and before.scraped_s is not None and now_s > before.scraped_s:
            interval = compare(before.scraped_s, before.page, now_s, page, model=model, max_num_seqs=seats)
            self._history.append(interval)
            restarted_s = now_s if interval.restarted else restarted_s
        status, message = "live", ""
        if restarted_s is not None and now_s - restarted_s < RESTART_SHOWN_S:
            status, message = "restarted", f"{before.address} was restarted; its counters began again"
        return replace(
            before,
            status=status,
            message=message,
            scraped_s=now_s,
            page=page,
            intervals=tuple(self._history),
            failures=0,
            seats=seats,
            seats_inferred=given is None and seats is not None,
            restarted_s=restarted_s,
            scrape_s=now_s - began_s,
        )

    def _guessed(self, page: ServerPage) -> CostModel | None:
        """The catalogue's geometry where the page has no FLOP counters, 16 bit on one device."""
        if "flops" in page.counters:
            return None
        spec = guess_model(page.model)
        return None if spec is None else cost_model(spec)

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


def check_timing(period_s: float, timeout_s: float) -> None:
    """Raise ConfigError for a period or time limit out of range."""
    if not 0.25 <= period_s <= 3600 or not 0.1 <= timeout_s <= 60:
        raise ConfigError(f"period {period_s} s and time limit {timeout_s} s; give 0.25 to 3600 s and 0.1 to 60 s")


class Scraper:
    """Watches targets until closed; targets come and go while it runs.

    Args:
        period_s: time between two scrapes of one target, at least 0.25 s.
        timeout_s: most time for one scrape.

    Raises:
        ConfigError: for too many targets, a name used twice, or a period out of range.
    """

    def __init__(
        self, targets: Sequence[Target] = (), *, period_s: float = 2.0, timeout_s: float = 2.0, clock: Clock | None = None
    ) -> None:
        check_timing(period_s, timeout_s)
        self._period_s, self._timeout_s = period_s, timeout_s
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._watchers: dict[str, _Watcher] = {}
        self.add(*targets)

    def add(self, *targets: Target) -> None:
        """Watch these as well, all or none; a name in use raises ConfigError."""
        with self._lock:
            names = [*self._watchers, *(t.name for t in targets)]
            if len(names) > MAX_TARGETS:
                raise ConfigError(f"{len(names)} targets; at most {MAX_TARGETS} are watched at once")
            if len(set(names)) != len(names):
                raise ConfigError(f"a target's name is used twice in {names}")
            made = {t.name: _Watcher(t, self._period_s, self._timeout_s, self._clock) for t in targets}
            self._watchers = {**self._watchers, **made}
            for watcher in made.values():
                watcher.thread.start()

    def remove(self, name: str) -> bool:
        """Stop watching; returns at once. False if there is no such target."""
        with self._lock:
            watcher = self._watchers.get(name)
            if watcher is None:
                return False
            self._watchers = {k: w for k, w in self._watchers.items() if k != name}
        watcher.stop.set()
        return True

    @property
    def period_s(self) -> float:
        """Time between two scrapes of one target, s."""
        return self._period_s

    def set_period(self, period_s: float) -> None:
        """Scrape every `period_s` from the next scrape on; ConfigError if it is out of range."""
        check_timing(period_s, self._timeout_s)
        with self._lock:
            self._period_s = period_s
            for watcher in self._watchers.values():
                watcher.period_s = period_s

    def states(self) -> tuple[TargetState, ...]:
        """The latest state of each target, without waiting."""
        return tuple(w.state for w in self._watchers.values())

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all threads, waiting at most `timeout_s` for all of them; calling it twice is harmless."""
        watchers = list(self._watchers.values())
        for watcher in watchers:
            watcher.stop.set()
        end_s = self._clock.now() + timeout_s
        for watcher in watchers:
            if watcher.thread is not threading.current_thread():
                watcher.thread.join(max(end_s - self._clock.now(), 0.0))
