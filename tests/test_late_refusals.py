"""A command that no step boundary answered in time: its refusal is told when it comes, once, and no other one with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core.clock import VirtualClock
from core.commands import CommandResult, Outcome
from core.control import AuditEntry
from core.errors import ControlRefused
from pages.parts import engine_access
from pages.parts.engine_access import Access
from tests.fake_live import FakeLive


class Busy(FakeLive):
    """Answers with what is next in `answers`; the audit list is what a test puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Outcome] = []
        self.entries: list[AuditEntry] = []

    def pause(self, **_: Any) -> CommandResult:
        if self.answers.pop(0) is Outcome.REFUSED:
            raise ControlRefused("not now")
        return CommandResult(Outcome.WAITING)

    def audit(self) -> tuple[AuditEntry, ...]:
        return tuple(self.entries)


def test_a_late_refusal_is_told_once_and_an_earlier_one_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = VirtualClock(100.0)
    monkeypatch.setattr(engine_access, "wall_clock", wall)
    monkeypatch.setattr(engine_access, "st", SimpleNamespace(session_state={}))
    live = Busy()
    access = Access(live, "me")
    live.answers = [Outcome.REFUSED, Outcome.WAITING]
    assert not access.pause().ok
    live.entries.insert(0, AuditEntry(wall.now(), "me", "pause", outcome="refused", message="not now"))
    wall.advance(0.5)
    assert access.pause().waiting
    assert access.late_refusals() == [], "the refusal of half a second ago was an answer"
    live.entries.insert(0, AuditEntry(wall.now(), "other", "pause", outcome="refused", message="of another session"))
    wall.advance(3.0)
    live.entries.insert(0, AuditEntry(wall.now(), "me", "pause", outcome="refused", message="broke a law"))
    assert access.late_refusals() == ["pause: broke a law"]
    assert access.late_refusals() == []
