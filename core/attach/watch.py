"""The watched servers of this process: one list for all pages, with the Prometheus servers that add to it.

    person:      add(Target) ------------------------------+
    Prometheus:  its own thread, every REFRESH_S: targets ---+--> Scraper (a thread a target) --> states()

BATCHSCOPE_TARGETS ("name=url, name=url") names those that are watched from the start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.attach.prometheus import targets_from_prometheus
from core.attach.scraper import Scraper, Target, TargetState, public_url
from core.clock import Clock, WallClock
from core.cost_model import CostModel
from core.devices import DeviceSpec
from core.errors import ConfigError

REFRESH_S = 30.0
MAX_SOURCES = 8


@dataclass(frozen=True, slots=True)
class SourceState:
    """A Prometheus server that targets are read from: "asking", "live" or "failed", and one sentence."""

    address: str
    status: str = "asking"
    message: str = "asking for its targets"
    found: int = 0


class _Source:
    """The thread that asks one Prometheus server."""

    def __init__(
        self, watch: Watch, base_url: str, headers: Mapping[str, str], model: CostModel | None, device: DeviceSpec | None
    ) -> None:
        self.state = SourceState(public_url(base_url))
        self._watch, self._url, self._headers = watch, base_url, dict(headers)
        self._model, self._device = model, device
        self._names: set[str] = set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"targets of {self.state.address}", daemon=True)

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                found = targets_from_prometheus(self._url, self._headers)
                self._take(tuple(replace(t, model=self._model, device=self._device) for t in found))
                self.state = SourceState(self.state.address, "live", "", len(found))
            except ConfigError as error:
                self.state = replace(self.state, status="failed", message=str(error))
            self.stop.wait(REFRESH_S)

    def _take(self, found: tuple[Target, ...]) -> None:
        """Watch what is new, forget what is gone."""
        names = {t.name for t in found}
        for gone in self._names - names:
            self._watch.scraper.remove(gone)
        used = {s.name for s in self._watch.states()}
        fresh = [t for t in found if t.name not in used]
        if self.stop.is_set():
            return
        self._watch.scraper.add(*fresh)
        self._names = (self._names & names) | {t.name for t in fresh}

    def forget(self) -> None:
        """Stop, and stop watching what came from here."""
        self.stop.set()
        for name in self._names:
            self._watch.scraper.remove(name)


class Watch:
    """What is watched. All calls return at once; scraping and asking happen in threads of their own."""

    def __init__(self, *, period_s: float = 2.0, timeout_s: float = 2.0, clock: Clock | None = None) -> None:
        self.clock = clock or WallClock()
        self.scraper = Scraper(period_s=period_s, timeout_s=timeout_s, clock=self.clock)
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()

    def add(self, target: Target) -> None:
        """Watch a server; a name in use raises ConfigError."""
        self.scraper.add(target)

    def add_prometheus(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        *,
        model: CostModel | None = None,
        device: DeviceSpec | None = None,
    ) -> None:
        """Watch what a Prometheus server scrapes, and follow its list.

        Raises:
            ConfigError: for an address that is none, one that is asked already, or too many of them.
        """
        Target("check", base_url)  # refuses what is no address
        source = _Source(self, base_url, headers or {}, model, device)
        with self._lock:
            if source.state.address in self._sources:
                raise ConfigError(f"{source.state.address} is asked already")
            if len(self._sources) >= MAX_SOURCES:
                raise ConfigError(f"{MAX_SOURCES} Prometheus servers are asked already; forget one first")
            self._sources[source.state.address] = source
        source.thread.start()

    def remove(self, name: str) -> bool:
        """Stop watching a target; False if there is none of that name."""
        return self.scraper.remove(name)

    def forget_prometheus(self, address: str) -> bool:
        """Stop asking a Prometheus server and stop watching its targets."""
        with self._lock:
            source = self._sources.pop(address, None)
        if source is None:
            return False
        source.forget()
        return True

    def states(self) -> tuple[TargetState, ...]:
        """The latest state of each target, without waiting."""
        return self.scraper.states()

    def sources(self) -> tuple[SourceState, ...]:
        """The Prometheus servers that are asked."""
        return tuple(s.state for s in self._sources.values())

    def now(self) -> float:
        """Present time on the clock of the states, s."""
        return self.clock.now()

    def close(self) -> None:
        """Stop everything."""
        for source in list(self._sources.values()):
            source.stop.set()
        self.scraper.close(2.0)


def targets_from_text(text: str) -> tuple[Target, ...]:
    """Targets of "name=url, name=url"; an address without a name is named by its host and port.

    Raises:
        ConfigError: for an entry that is no address.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, has_name, url = entry.partition("=")
        if not has_name or name.startswith(("http://", "https://")):
            name, url = "", entry
        found.append(Target(name.strip() or public_url(url).partition("//")[2] or url, url.strip()))
    return tuple(found)


_watch: list[Watch] = []
_getting = threading.Lock()


def get_watch() -> Watch:
    """The one list of this process, made with the first call."""
    with _getting:
        if not _watch:
            watch = Watch()
            watch.scraper.add(*targets_from_text(os.environ.get("BATCHSCOPE_TARGETS", "")))
            _watch.append(watch)
        return _watch[0]


def close_watch() -> None:
    """Stop the threads of the process's list, if there is one."""
    with _getting:
        while _watch:
            _watch.pop().close()
