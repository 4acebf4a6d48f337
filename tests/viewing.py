"""A server on a copy of the sources, and viewers who stay until they have seen enough: slow servers take longer, no more."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from benchmarks.dashboard import ROOT, START_LIMIT_S, free_port
from benchmarks.viewers import Viewer
from tests.live_cases import wait_until

LIMIT_S = 240.0
_T = TypeVar("_T")


@contextmanager
def served_copy(folder: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a server on a copy of the sources, with a tiny model in a worker process; log: folder/log."""
    for name in ("core", "pages", "assets", ".streamlit"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "app.py", folder)
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), "--server.headless", "true"]
    environment = os.environ | {"BATCHSCOPE_MODEL": "tiny", "BATCHSCOPE_DTYPE": "float32", "BATCHSCOPE_USERS": "4"}
    environment["BATCHSCOPE_RAMP_S"] = "0"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def is_serving() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        with suppress(OSError):
            return tokens(url) >= 5
        return False

    try:
        wait_until(is_serving, START_LIMIT_S, "the first tokens")
        yield url, server.pid
    finally:
        server.terminate()
        server.wait(60)


def tokens(url: str) -> float:
    """Tokens made so far, by the metrics page (OSError while there is no server)."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{"))


async def see(viewer: Viewer, enough: Callable[[], bool]) -> Viewer:
    """Look until it is enough."""
    viewer.goes_on = lambda: not enough()
    await viewer.watch(LIMIT_S)
    assert enough(), f"not seen in {LIMIT_S:.0f} s, {viewer.runs} refreshes"
    return viewer


def beside(look: Callable[[], Awaitable[_T]]) -> _T:
    """Run it in a thread: the browser of other tests keeps a loop of its own in this one."""

    async def run() -> _T:
        return await look()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
