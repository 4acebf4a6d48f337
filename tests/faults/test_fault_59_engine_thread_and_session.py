"""Fault 59: a worker thread touches page state that exists only in the page's own run; errors fill the log."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from benchmarks.viewers import Viewer, watch
from tests.browser.test_edit_while_it_runs import copied, steps

__all__ = ["copied"]  # the fixture

pytestmark = pytest.mark.slow


async def visits(url: str) -> list[Viewer]:
    """A page, the same page opened twice at once of which one tab is closed early, then a reload."""
    first = await watch(url, "live", 1, 6.0)
    long, short = await asyncio.gather(watch(url, "live", 1, 12.0), watch(url, "live", 1, 6.0))
    return [*first, *long, *short, *await watch(url, "live", 1, 6.0)]


def look(url: str) -> None:
    with ThreadPoolExecutor(1) as thread:  # the browser of other tests keeps a loop of its own in this one
        viewers = thread.submit(lambda: asyncio.run(visits(url))).result()
    assert [error for viewer in viewers for error in viewer.errors] == []
    assert all(viewer.runs for viewer in viewers)
    assert sum(viewer.runs for viewer in viewers) > 2 * len(viewers)


def test_one_engine_whatever_pages_do_and_a_log_without_warnings(copied: tuple[str, Path, int]) -> None:
    url, folder, pid = copied
    workers = {child.pid for child in psutil.Process(pid).children()}
    assert len(workers) == 1, "one worker"
    made = steps(url)
    look(url)
    between = steps(url)
    assert between > made, "the same run goes on"
    page = folder / "pages" / "live.py"
    page.write_text(f"{page.read_text()}\n# saved again\n")
    time.sleep(1.0)
    look(url)
    assert steps(url) > between, "the same run goes on after the edit"
    assert {child.pid for child in psutil.Process(pid).children()} == workers
    log = (folder / "log").read_text()
    assert "ScriptRunContext" not in log, log
    assert "Traceback" not in log, log
    assert "Error" not in log, log


def test_nothing_of_the_engine_knows_the_pages_library() -> None:
    core = Path(__file__).resolve().parents[2] / "core"
    users = [
        path for path in core.rglob("*.py") if "import streamlit" in path.read_text() or "from streamlit" in path.read_text()
    ]
    assert users == []
