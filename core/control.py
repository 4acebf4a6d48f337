"""Who may turn the knobs, how far, and what was turned: the lease, the limits, the audit list.

    many viewers          one controller
    latest(), history()   acquire -> heartbeat, heartbeat, ... -> release, hand over, or expiry after `lease_s` of silence

A page may be opened by anyone who reaches the port, so widgets are no protection: every command passes here, in
the caller's thread, before it enters the engine's queue. The lock is held for a few attribute reads and never by
the engine's thread.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from dataclasses import dataclass, field

from core.clock import Clock, WallClock
from core.errors import ConfigError, ControlRefused

LOCAL = "local"
"""Caller inside this process (HTTP route with its own authorisation, notebook, test): needs no lease."""

MAX_AUDIT = 500


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Bounds that hold for every caller, widgets or not.

    Attributes:
        max_prompt_chars, max_prompt_tokens: of one submitted prompt.
        max_output_tokens: of one submitted request.
        max_waiting: requests in the queue above which a submission is refused.
        max_rate_per_s, max_users, max_burst: of a generated load.
        max_commands: commands that wait for a step boundary.
        max_streams: answers kept for readers; the oldest ended one goes first.
    """

    max_prompt_chars: int = 200_000
    max_prompt_tokens: int = 32_768
    max_output_tokens: int = 8_192
    max_waiting: int = 2_000
    max_rate_per_s: float = 500.0
    max_users: int = 512
    max_burst: int = 2_000
    max_commands: int = 256
    max_streams: int = 256

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"limit {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The lease as a page shows it; `expires_in_s` counts down between heartbeats."""

    holder: str | None
    label: str = ""
    expires_in_s: float = 0.0
    needs_token: bool = False


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One command. `time_s` is WallClock time; `outcome` is "accepted", "refused" or "waiting"."""

    time_s: float
    session_id: str
    command: str
    detail: str = ""
    outcome: str = "accepted"
    message: str = ""


@dataclass(slots=True)
class _Held:
    holder: str | None = None
    label: str = ""
    until_s: float = 0.0


@dataclass(slots=True)
class Lease:
    """One controller at a time; every other session watches.

    Args:
        lease_s: silence after which the lease is free again, s.
        token: if set, taking the lease needs it. With it, a holder can also be replaced (`force`).
    """

    lease_s: float = 15.0
    token: str | None = None
    clock: Clock = field(default_factory=WallClock)
    _held: _Held = field(default_factory=_Held)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _holder(self) -> str | None:
        if self._held.holder is not None and self.clock.now() >= self._held.until_s:
            self._held = _Held()
        return self._held.holder

    def view(self) -> LeaseView:
        with self._lock:
            holder = self._holder()
            left_s = self._held.until_s - self.clock.now() if holder is not None else 0.0
            return LeaseView(holder, self._held.label, left_s, self.token is not None)

    def acquire(self, session_id: str, token: str | None = None, *, label: str = "", force: bool = False) -> LeaseView:
        """Become the controller; the holder itself renews.

        Raises:
            ControlRefused: if another session holds the lease, or the token is missing or wrong.
        """
        if not session_id or session_id == LOCAL:
            raise ControlRefused("taking control needs the id of a session")
        if self.token is not None and not hmac.compare_digest((token or "").encode(), self.token.encode()):
            raise ControlRefused("taking control needs the control token of this dashboard; the one given is missing or wrong")
        with self._lock:
            holder = self._holder()
            if holder not in (None, session_id) and not (force and self.token is not None):
                left_s = self._held.until_s - self.clock.now()
                raise ControlRefused(
                    f"{self._held.label or 'another session'} has control; ask for a hand-over, or wait: without a sign of"
                    f" life the lease ends in {left_s:.0f} s"
                )
            self._held = _Held(session_id, label or self._held.label, self.clock.now() + self.lease_s)
        return self.view()

    def heartbeat(self, session_id: str) -> bool:
        """Renew the lease; False if this session does not hold it (any more)."""
        with self._lock:
            if self._holder() != session_id:
                return False
            self._held.until_s = self.clock.now() + self.lease_s
            return True

    def release(self, session_id: str) -> bool:
        """Give the lease back; False if this session did not hold it."""
        with self._lock:
            if self._holder() != session_id:
                return False
            self._held = _Held()
            return True

    def hand_over(self, session_id: str, to_session_id: str, *, label: str = "") -> None:
        """Make another session the controller.

        Raises:
            ControlRefused: if `session_id` does not hold the lease.
        """
        self.check(session_id)
        if not to_session_id or to_session_id == LOCAL:
            raise ControlRefused("a hand-over needs the id of the session that takes over")
        with self._lock:
            self._held = _Held(to_session_id, label, self.clock.now() + self.lease_s)

    def check(self, session_id: str) -> None:
        """Let the controller and callers inside this process pass.

        Raises:
            ControlRefused: for everybody else, with who has control.
        """
        if session_id == LOCAL:
            return
        with self._lock:
            holder = self._holder()
            if holder == session_id:
                return
            who = "nobody" if holder is None else (self._held.label or "another session")
        raise ControlRefused(f"this session only watches; {who} has control. Take control first")


class AuditLog:
    """The last commands, newest first; bounded."""

    def __init__(self, max_entries: int = MAX_AUDIT) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=max_entries)

    def add(self, entry: AuditEntry) -> None:
        self._entries.appendleft(entry)

    def entries(self) -> tuple[AuditEntry, ...]:
        """All entries; the copy is taken in one step of the interpreter, so no lock is needed."""
        return tuple(self._entries.copy())
