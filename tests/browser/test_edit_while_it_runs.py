"""A page file is saved while the server runs: viewers get the new page, and there is still the one engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.viewers import Viewer
from tests.live_cases import wait_until
from tests.viewing import beside, see, served_copy, tokens

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TICK = "tick_was_edited"


def look(url: str, enough: Callable[[], bool] = lambda: True) -> None:
    viewer = Viewer(url, "live")
    beside(lambda: see(viewer, lambda: viewer.runs > 2 and enough()))
    assert viewer.errors == []


def test_saving_page_files_keeps_the_one_engine(tmp_path: Path) -> None:
    with served_copy(tmp_path) as (url, pid):
        look(url)
        before = {child.pid for child in psutil.Process(pid).children()}
        assert len(before) == 1, "one worker"
        seen = tmp_path / TICK
        for name in ("live.py", "parts/ticker.py", "parts/engine_access.py", "parts/frame.py"):
            path = tmp_path / "pages" / name
            path.write_text(f"{path.read_text()}\n# saved again\n")
        page = tmp_path / "pages" / "live.py"
        page.write_text(page.read_text().replace("def render(", f"open({str(seen)!r}, 'w').close()\n\n\ndef render(", 1))
        made = tokens(url)
        look(url, seen.exists)  # the edited page is what runs
        wait_until(lambda: tokens(url) > made, what="the engine goes on")
        assert {child.pid for child in psutil.Process(pid).children()} == before, "the same worker, and no second one"
        assert "Traceback" not in (tmp_path / "log").read_text()
