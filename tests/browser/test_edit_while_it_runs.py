"""A page file is saved while the server runs: viewers get the new page, and there is still the one engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from benchmarks.viewers import watch
from tests.browser.conftest import ROOT, free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TICK = "tick_was_edited"


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[tuple[str, Path, int]]:
    """Address, folder and process id of a server on a copy of the sources, with a tiny model in a worker process."""
    for name in ("core", "pages", "assets", ".streamlit"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "app.py", tmp_path)
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), "--server.headless", "true"]
    environment = os.environ | {"BATCHSCOPE_MODEL": "tiny", "BATCHSCOPE_DTYPE": "float32", "BATCHSCOPE_USERS": "4"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    url, end_s = f"http://127.0.0.1:{port}", time.monotonic() + 90
    try:
        while steps(url) < 5:
            assert time.monotonic() < end_s, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield url, tmp_path, server.pid
    finally:
        server.terminate()
        server.wait(20)


def steps(url: str) -> float:
    """Tokens made so far, by the metrics page; 0 while there is none."""
    try:
        text = urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode()
    except OSError:
        return 0.0
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{"))


def look(url: str) -> None:
    with ThreadPoolExecutor(1) as thread:  # the browser of other tests keeps a loop of its own in this one
        (viewer,) = thread.submit(lambda: asyncio.run(watch(url, "live", 1, 4.0))).result()
    assert viewer.errors == []
    assert viewer.runs > 2


def test_saving_page_files_keeps_the_one_engine(copied: tuple[str, Path, int]) -> None:
    url, folder, pid = copied
    look(url)
    before = {child.pid for child in psutil.Process(pid).children()}
    assert len(before) == 1, "one worker"
    seen = folder / TICK
    for name in ("live.py", "parts/ticker.py", "parts/engine_access.py", "parts/frame.py"):
        path = folder / "pages" / name
        path.write_text(f"{path.read_text()}\n# saved again\n")
    page = folder / "pages" / "live.py"
    page.write_text(page.read_text().replace("def render(", f"open({str(seen)!r}, 'w').close()\n\n\ndef render(", 1))
    time.sleep(1.0)
    made = steps(url)
    look(url)
    assert seen.exists(), "the edited page is what runs"
    assert steps(url) > made, "the engine goes on"
    assert {child.pid for child in psutil.Process(pid).children()} == before, "the same worker, and no second one"
    assert "Traceback" not in (folder / "log").read_text()
