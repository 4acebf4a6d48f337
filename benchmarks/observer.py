"""What watching costs: throughput of the dashboard's engine with viewers, and beside a busy Python thread.

    python -m benchmarks observer [--seconds 10] [--rounds 3] [--users 32] [--browser]

One server, a closed loop that keeps it saturated, and phases in turn, so that drift meets all of them alike:

    alone            nobody looks
    two viewers      two WebSocket sessions on the live page at its default refresh, painting nothing
    busy, inside     a pure Python loop in a thread of the server's process (it competes for the GIL and for a core)
    busy, outside    the same loop in a process of its own (it competes for a core only)
    browser          with --browser: headless chromium, which paints

ratio_two_viewers = two viewers / alone;   ratio_busy_thread = busy inside / busy outside, so that only the GIL's share
is judged. Ratios are taken within a round, then the median over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.dashboard_server import ROOT, START_LIMIT_S, serving
from benchmarks.load import median_and_spread
from benchmarks.observed_app_loop import busy_loop
from benchmarks.report import print_json_line, print_table

SETTLE_S = 2.0
_TOKENS = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)


def tokens_so_far(url: str) -> float:
    """Output tokens since the server's start, from its metrics page."""
    found = _TOKENS.search(httpx.get(f"{url}/metrics", timeout=10).text)
    return float(found[1]) if found else 0.0


def throughput(url: str, seconds: float) -> float:
    """Output tokens a second over the next `seconds`."""
    begin_tokens, begin_s = tokens_so_far(url), time.perf_counter()
    time.sleep(seconds)
    end_tokens = tokens_so_far(url)
    return (end_tokens - begin_tokens) / (time.perf_counter() - begin_s)


@contextlib.contextmanager
def served(switch: Path, users: int, seed: int) -> Iterator[str]:
    """The dashboard under a saturating load; yields its address once tokens flow."""
    environment = {
        "BATCHSCOPE_BUSY_FILE": str(switch),
        "BATCHSCOPE_USERS": str(users),
        "BATCHSCOPE_THINK_S": "0",
        "BATCHSCOPE_SEED": str(seed),
    }
    with serving("benchmarks.observed_app:app", environment) as (url, server):
        deadline_s = time.monotonic() + START_LIMIT_S
        while tokens_so_far(url) == 0:
            if server.poll() is not None:
                raise SystemExit(f"the dashboard ended at its start with status {server.returncode}")
            if time.monotonic() > deadline_s:
                raise SystemExit(f"no token within {START_LIMIT_S:.0f} s of the start")
            time.sleep(0.5)
        time.sleep(3 * SETTLE_S)
        yield url


@contextlib.contextmanager
def viewers(url: str, count: int, seconds: float) -> Iterator[None]:
    """Sessions that look at the live page in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.viewers", url, "--count", str(count), "--seconds", str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        text, _ = process.communicate()
        if process.returncode or '"errors": []' not in text:
            raise SystemExit(f"the viewers failed: {text}")


@contextlib.contextmanager
def browser(url: str) -> Iterator[None]:
    """One headless chromium on the live page."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("--browser needs chromium on the path")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox", "--disable-gpu"])
        page = running.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{url}/live")
        page.get_by_label("Engine status").wait_for(timeout=60_000)
        yield
        running.close()


@contextlib.contextmanager
def busy(switch: Path) -> Iterator[None]:
    """Let the loop that watches this file compute."""
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()


def main(argv: list[str]) -> int:
    """Run the phases in turn; print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks observer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=int, default=32, help="of the closed loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--browser", action="store_true")
    args = parser.parse_args(argv)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        inside, outside = Path(folder, "inside"), Path(folder, "outside")
        other = multiprocessing.get_context("spawn").Process(
            target=busy_loop, args=(outside,), kwargs={"ends_with": os.getpid()}, daemon=True
        )
        other.start()
        with served(inside, args.users, args.seed) as url:
            for _ in range(args.rounds):
                phases = {
                    "alone": contextlib.nullcontext(),
                    "two viewers": viewers(url, 2, args.seconds + 2 * SETTLE_S),
                    "busy, inside": busy(inside),
                    "busy, outside": busy(outside),
                }
                if args.browser:
                    phases["browser"] = browser(url)
                for name, phase in phases.items():
                    with phase:
                        time.sleep(SETTLE_S)
                        found.setdefault(name, []).append(throughput(url, args.seconds))
                    time.sleep(SETTLE_S)
        other.terminate()
    rows = [[name, *median_and_spread(values)] for name, values in found.items()]
    print_table(["phase", "output tokens/s", "spread"], rows)

    def ratio(above: str, below: str) -> float:
        return median_and_spread([a / b for a, b in zip(found[above], found[below], strict=True)])[0]

    line: dict[str, object] = {
        "benchmark": "observer",
        "ratio_two_viewers": ratio("two viewers", "alone"),
        "ratio_busy_thread": ratio("busy, inside", "busy, outside"),
        "output_tokens_per_s": rows[0][1],
        "spread": rows[0][2],
    }
    if args.browser:
        line["ratio_browser"] = ratio("browser", "alone")
    line |= {
        "device": "cpu" if not _has_cuda() else "cuda",
        "threads": os.cpu_count(),
        "dtype": os.environ.get("BATCHSCOPE_DTYPE") or "bfloat16",
        "model": os.environ.get("BATCHSCOPE_MODEL") or "smollm2",
        "load": f"closed loop, {args.users} users without thinking",
        "seed": args.seed,
        "rounds": args.rounds,
    }
    print_json_line(line)
    return 0


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
