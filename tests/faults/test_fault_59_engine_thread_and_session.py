"""Fault 59: a worker thread touches page state that exists only in the page's own run; errors fill the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.viewers import Viewer
from tests.live_cases import wait_until
from tests.viewing import beside, see, served_copy, tokens

REFRESHES = 8
"""That each visit lasts for, the page's own run among them."""


async def visits(url: str, also: Callable[[], bool]) -> list[Viewer]:
    """A page, the same page opened twice at once of which one tab is closed early, then a reload."""
    first, long, short, again = (Viewer(url, "live") for _ in range(4))
    await see(first, lambda: first.runs >= REFRESHES and also())
    closed: int | None = None
    staying = asyncio.create_task(see(long, lambda: closed is not None and long.runs >= closed + REFRESHES))
    await see(short, lambda: short.runs >= REFRESHES)
    closed = long.runs
    await staying
    await see(again, lambda: again.runs >= REFRESHES)
    return [first, long, short, again]


def look(url: str, also: Callable[[], bool] = lambda: True) -> None:
    viewers = beside(lambda: visits(url, also))
    assert [error for viewer in viewers for error in viewer.errors] == []


@pytest.mark.slow
def test_one_engine_whatever_pages_do_and_a_log_without_warnings(tmp_path: Path) -> None:
    with served_copy(tmp_path) as (url, pid):
        workers = {child.pid for child in psutil.Process(pid).children()}
        assert len(workers) == 1, "one worker"
        made = tokens(url)
        look(url)
        wait_until(lambda: tokens(url) > made, what="the same run goes on")
        between, page, seen = tokens(url), tmp_path / "pages" / "live.py", tmp_path / "page_was_edited"
        page.write_text(page.read_text().replace("def render(", f"open({str(seen)!r}, 'w').close()\n\n\ndef render(", 1))
        look(url, seen.exists)
        wait_until(lambda: tokens(url) > between, what="the same run goes on after the edit")
        assert {child.pid for child in psutil.Process(pid).children()} == workers
        log = (tmp_path / "log").read_text()
    assert "ScriptRunContext" not in log, log
    assert "Traceback" not in log, log
    assert "Error" not in log, log


def test_nothing_of_the_engine_knows_the_pages_library() -> None:
    core = Path(__file__).resolve().parents[2] / "core"
    users = [
        path for path in core.rglob("*.py") if "import streamlit" in path.read_text() or "from streamlit" in path.read_text()
    ]
    assert users == []
