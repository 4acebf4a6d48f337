"""When a picture of the engine is made and what the loop adds to it.

running   at most 20 a second, and never more than PUBLISH_SHARE of the time
at rest   four a second, so that rates fall to zero and the age stays small
at once   after a command, a single step, a change of state
"""

from __future__ import annotations

from dataclasses import replace

from core.clock import WallClock
from core.config import EngineConfig
from core.engine import Engine
from core.live_board import Board

PUBLISH_S = 0.05
REST_S = 0.25
PUBLISH_SHARE = 0.04
MAX_GAP_S = 0.5  # a picture that a busy machine made slow is no reason to show none
NOTICE_S = 20.0


class Pictures:
    """Publishes on a board; engine's thread only.

    Attributes:
        trouble: why nothing runs; stays until it is set to "".
        load_label: the load in one line.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._wall = WallClock()
        self._next_s = 0.0
        self._notice, self._notice_until_s = "", 0.0
        self.trouble = ""
        self.load_label = ""

    def notice(self, text: str) -> None:
        """Show a message for a while."""
        self._notice, self._notice_until_s = text, self._wall.now() + NOTICE_S

    def publish(self, engine: Engine | None, state: str, *, progress: str = "", force: bool = False) -> None:
        """Make a picture if it is time, or in any case."""
        now_s = self._wall.now()
        if not force and now_s < self._next_s and state == self._board.latest.state:
            return
        if self._notice and now_s > self._notice_until_s:
            self._notice = ""
        message = self.trouble or self._notice
        if engine is None:
            self._board.publish(None, state, now_s, message=message, progress=progress, load_label=self.load_label)
        else:
            snapshot = replace(engine.snapshot(now_s, state), load_label=self.load_label)
            self._board.publish(snapshot, state, now_s, message=message or snapshot.message, progress=progress)
        cost_s = self._wall.now() - now_s
        rest_s = PUBLISH_S if state == "running" else 0.95 * REST_S
        self._next_s = now_s + max(rest_s, min(cost_s / PUBLISH_SHARE, MAX_GAP_S))

    def failed(self, message: str) -> None:
        """Say that the engine failed, without asking it for a picture: that may be what failed."""
        self._board.publish(None, "failed", self._wall.now(), message=message, load_label=self.load_label)

    def starting(self, progress: str, config: EngineConfig) -> None:
        """Say how far a load is."""
        self._board.publish(None, "starting", self._wall.now(), progress=progress, load_label=self.load_label, config=config)
