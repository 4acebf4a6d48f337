"""The dashboard as a process of its own, for tests and benchmarks that need a real server: `streamlit run app.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running dashboard."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def served(folder: Path, **environment: str) -> Iterator[Served]:
    """Start the dashboard, wait until its model is loaded (/health answers 200), and stop it at the end."""
    found = Served(free_port(), folder / "server.log")
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(found.port), "--server.headless", "true"]
    with found.log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    try:
        _await(process, found)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _await(process: subprocess.Popen[bytes], found: Served) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"the dashboard ended at start:\n{found.log.read_text(errors='replace')}")
        try:
            with urllib.request.urlopen(found.url + "/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"the dashboard does not answer:\n{found.log.read_text(errors='replace')}")
