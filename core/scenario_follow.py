"""A scenario file that the live engine follows: saving it in an editor changes the engine at the next step boundary.

    file saved -> ScenarioWatcher -> configure(scheduler, cache, load), all or none -> status
    broken file -> status with the line; the settings before it stay in force

One file for each engine. Model and target hardware of a scenario are not the live engine's business: the first would end
live requests, the second is for predictions.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from core.clock import Clock, WallClock
from core.commands import CommandResult
from core.config import CacheConfig, SchedulerConfig
from core.control import LOCAL
from core.errors import BatchscopeError
from core.live_changes import KEEP, Keep
from core.load_spec import LoadSpec
from core.scenario import Scenario, ScenarioError
from core.scenario_watch import ScenarioWatcher


class Configurable(Protocol):
    """What a follower needs of a live engine."""

    def configure(
        self,
        *,
        session_id: str,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        load: LoadSpec | Keep | None,
        wait_s: float,
    ) -> CommandResult: ...


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """How following stands.

    Attributes:
        applied: saves that took effect; `name` of the latest.
        at_s: WallClock time of the latest save that was read.
        problem, line: why the latest content was not used, and where; "" and 0 if it was.
    """

    path: Path
    applied: int = 0
    name: str = ""
    at_s: float | None = None
    problem: str = ""
    line: int = 0


class ScenarioFollower:
    """Follows one file until it is stopped."""

    def __init__(self, live: Configurable, path: Path, *, clock: Clock | None = None) -> None:
        self._live = live
        self._clock = clock or WallClock()
        self._watcher = ScenarioWatcher(path, self._take, self._refuse)
        self.status = FollowStatus(self._watcher.path)

    def start(self) -> None:
        """Begin; a file that is there already is taken at once.

        Raises:
            ScenarioError: if its folder does not exist.
        """
        self._watcher.start()

    def stop(self) -> None:
        """End; the settings stay as they are."""
        self._watcher.stop()

    def _take(self, scenario: Scenario) -> None:
        load: LoadSpec | Keep = KEEP if scenario.load is None else scenario.load
        try:
            result = self._live.configure(
                session_id=LOCAL, scheduler=scenario.engine.scheduler, cache=scenario.engine.cache, load=load, wait_s=5.0
            )
        except BatchscopeError as error:
            self._refuse(ScenarioError(str(error)))
            return
        if not result.accepted:
            self._refuse(ScenarioError(result.message))
            return
        now = self._clock.now()
        self.status = replace(
            self.status,
            applied=self.status.applied + 1,
            name=scenario.name or self.status.path.name,
            at_s=now,
            problem="",
            line=0,
        )

    def _refuse(self, error: ScenarioError) -> None:
        self.status = replace(self.status, at_s=self._clock.now(), problem=str(error), line=error.line)


_followers: weakref.WeakKeyDictionary[object, ScenarioFollower] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def follow(live: Configurable, path: Path) -> ScenarioFollower:
    """Follow a file with this engine instead of the one before.

    Raises:
        ScenarioError: for a name that is not *.toml, or a folder that does not exist.
    """
    if path.suffix.lower() != ".toml":
        raise ScenarioError(f"{path.name or 'the path'} is not a scenario; name a file that ends with .toml")
    follower = ScenarioFollower(live, path)
    follower.start()
    with _lock:
        old = _followers.pop(live, None)
        _followers[live] = follower
    if old is not None:
        old.stop()
    return follower


def unfollow(live: object) -> None:
    """Stop following; harmless if nothing is followed."""
    with _lock:
        old = _followers.pop(live, None)
    if old is not None:
        old.stop()


def following(live: object) -> FollowStatus | None:
    """How following stands; None if no file is followed."""
    with _lock:
        found = _followers.get(live)
    return found.status if found is not None else None
