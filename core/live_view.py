"""What pages read of the live engine and how a session takes control; nothing here enters the engine's queue.

latest()  history()  requests()  story()  stream()      no lock, any thread
lease()  acquire()  heartbeat()  release()  hand_over() a lock that the engine's thread never takes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from core.clock import WallClock
from core.config import EngineConfig
from core.control import AuditEntry, Lease, LeaseView
from core.errors import ControlRefused
from core.live_board import Board
from core.live_loop import EngineLoop
from core.load_driver import LoadCounts
from core.load_spec import LoadSpec
from core.outputs import RequestEvent
from core.records import RequestRecord, StepRecord
from core.run_record import RunRecord
from core.snapshot import EngineSnapshot
from core.story import Story
from core.streams import RequestStream

_T = TypeVar("_T")


class LiveView:
    """The reading half of `core.live.LiveEngine`."""

    def __init__(self, board: Board, loop: EngineLoop, lease: Lease) -> None:
        self._board = board
        self._loop = loop
        self._host = loop.host
        self._lease = lease
        self._wall = WallClock()

    # -- readers: no lock, any thread ----------------------------------------------------------------------

    def latest(self) -> EngineSnapshot:
        """The newest picture."""
        return self._board.latest

    def now(self) -> float:
        """The time on the engine's clock, s.

        Raises:
            ControlRefused: while there is no engine.
        """
        return self._board.require_engine().clock.now()

    def pictures(self) -> tuple[EngineSnapshot, ...]:
        """Earlier pictures of this run, oldest first: bounded, dense near the end, reaching back to the beginning."""
        return self._board.past.pictures

    def history(self, since_step: int = -1) -> tuple[StepRecord, ...]:
        """Records of steps after `since_step`, oldest first; old ones are thinned."""
        return self._board.history(since_step)

    def requests(self) -> tuple[RequestRecord, ...]:
        """Records of ended requests, newest first."""
        return self._board.requests()

    def story(self, request_id: str) -> Story | None:
        """A request's life, live or ended not long ago; None if it is not known."""
        return self._board.story(request_id)

    def run_record(self) -> RunRecord:
        """Commands, decisions and answers since the engine started, or the beginning of them if they are very many.

        Raises:
            ControlRefused: while there is no engine, or if it records nothing.
        """
        return self._board.run_record()

    def stream(self, request_id: str) -> RequestStream:
        """The answer of a submitted request as it grows.

        Raises:
            UnknownRequest: for requests of a generated load, and for answers of long ago.
        """
        return self._board.streams.get(request_id)

    @property
    def config(self) -> EngineConfig:
        """The configuration in force."""
        return self.latest().config

    @property
    def load(self) -> LoadSpec | None:
        """The running load, or the one that a start is about to begin; None if there is none."""
        return self._host.load

    @property
    def load_counts(self) -> LoadCounts:
        """What became of the load's requests."""
        return self._host.driver.counts

    @property
    def steps_per_s(self) -> float | None:
        """The speed limit; None is as fast as it goes."""
        return self._loop.steps_per_s

    @contextmanager
    def listening(self, listener: Callable[[Sequence[RequestEvent]], None]) -> Iterator[None]:
        """Have the events of each step told to `listener`, in the engine's thread; it must only take notes."""
        self._host.listeners.append(listener)
        try:
            yield
        finally:
            self._host.listeners.remove(listener)

    # -- control -------------------------------------------------------------------------------------------

    def lease(self) -> LeaseView:
        """Who has control."""
        return self._lease.view()

    def acquire(self, session_id: str, token: str | None = None, *, label: str = "", force: bool = False) -> LeaseView:
        """Take control; ControlRefused if another session has it or the token is wrong."""
        return self._note(session_id, "acquire", lambda: self._lease.acquire(session_id, token, label=label, force=force))

    def heartbeat(self, session_id: str) -> bool:
        """Keep control; False if this session has it no more."""
        return self._lease.heartbeat(session_id)

    def check_control(self, session_id: str) -> None:
        """Raise ControlRefused unless this session may give commands."""
        self._lease.check(session_id)

    def release(self, session_id: str) -> bool:
        """Give control back; False if this session did not have it."""
        return self._note(session_id, "release", lambda: self._lease.release(session_id))

    def hand_over(self, session_id: str, to_session_id: str, *, label: str = "") -> None:
        """Give control to another session; ControlRefused for anyone but the controller."""
        self._note(session_id, "hand over", lambda: self._lease.hand_over(session_id, to_session_id, label=label))

    def audit(self) -> tuple[AuditEntry, ...]:
        """The last commands, newest first."""
        return self._board.audit.entries()

    def _note(self, session_id: str, command: str, run: Callable[[], _T], *, only_refusals: bool = False) -> _T:
        """Carry out a change of control and put it on the audit list, refused or not."""
        try:
            value = run()
        except ControlRefused as refusal:
            self._board.audit.add(AuditEntry(self._wall.now(), session_id, command, "", "refused", str(refusal)))
            raise
        if not only_refusals:
            self._board.audit.add(AuditEntry(self._wall.now(), session_id, command))
        return value
