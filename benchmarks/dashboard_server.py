"""A dashboard in a process of its own, for benchmarks that look at it from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 240.0
_TOKENS = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)


def tokens_so_far(url: str) -> float:
    """Output tokens since the server's start, from its metrics page."""
    found = _TOKENS.search(httpx.get(f"{url}/metrics", timeout=10).text)
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def serving(app: str, environment: Mapping[str, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve `module:app` on this machine; yields its address and process once it answers.

    Raises:
        SystemExit: if the server ends or does not answer in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--no-access-log", "--log-level", "error", "--ws-per-message-deflate", "false"]  # as `streamlit run` does
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), *options]
    server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            if server.poll() is not None:
                raise SystemExit(f"the dashboard ended at its start with status {server.returncode}")
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the dashboard does not answer within {START_LIMIT_S:.0f} s")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/_stcore/health", timeout=5).status_code == 200:
                    break
            time.sleep(0.3)
        yield url, server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(5)
