"""What watching costs: throughput of the dashboard's engine with viewers, and beside a busy Python thread.

    python -m benchmarks observer [--seconds 4] [--rounds 12] [--users 32] [--browser]

One server under a steady load, and short phases in turn, each round in the opposite order of the one before, so that drift
meets all of them alike:

    alone            nobody looks
    two viewers      two WebSocket sessions on the live page at its default refresh, painting nothing (6 s after they came)
    busy, inside     a pure Python loop in a thread of the server's process (it competes for the GIL and for a core)
    busy, outside    the same loop in a process of its own (it competes for a core only)
    browser          with --browser: headless chromium, which paints

ratio_two_viewers = two viewers / alone;   ratio_busy_thread = busy inside / busy outside, so that only the GIL's share
is judged. A ratio is taken within each round; the line has the median over rounds and the 95 % interval of that median.
A phase's rate is that of the steps which ended in it, from the engine's own records.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.dashboard_server import ROOT, START_LIMIT_S, serving
from benchmarks.load import median_and_spread
from benchmarks.observed_app_loop import StepLine, busy_loop, read_steps, tokens_per_s
from benchmarks.report import print_json_line, print_table

SETTLE_S = 1.0
SETTLE_VIEWERS_S = 6.0
"""A page counts a session after 4 s and refreshes less often with each of several; before that two cost as much as four."""

FIRST_ANSWERS_S = 12.0
"""After the start: until the users, who all began at once, ask at different times."""

Window = tuple[str, float, float]
"""Phase, begin and end on the machine's monotonic clock, s."""


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, from ranks (no distribution is assumed); all values where there are few."""
    ordered, count = sorted(values), len(values)
    outside = 0  # values on each side that may be left out
    below = 0.0  # chance that fewer than outside + 1 of the values are below the median
    while (below := below + math.comb(count, outside) * 0.5**count) <= 0.025:
        outside += 1
    at = max(outside - 1, 0)
    return ordered[at], ordered[count - 1 - at]


@contextlib.contextmanager
def served(folder: Path, users: int, seed: int) -> Iterator[str]:
    """The dashboard under its load; yields its address once the batch is full and mixed."""
    steps = folder / "steps"
    environment = {
        "BATCHSCOPE_BUSY_FILE": str(folder / "inside"),
        "BATCHSCOPE_STEPS_FILE": str(steps),
        "BATCHSCOPE_USERS": str(users),
        "BATCHSCOPE_SEED": str(seed),
    }
    with serving("benchmarks.observed_app:app", environment) as (url, server):
        deadline_s = time.monotonic() + START_LIMIT_S
        while not steps.exists():
            if server.poll() is not None:
                raise SystemExit(f"the dashboard ended at its start with status {server.returncode}")
            if time.monotonic() > deadline_s:
                raise SystemExit(f"no step within {START_LIMIT_S:.0f} s of the start")
            time.sleep(0.5)
        time.sleep(FIRST_ANSWERS_S)
        yield url


@contextlib.contextmanager
def viewers(url: str, switch: Path, count: int) -> Iterator[None]:
    """A process whose sessions look at the live page while the file exists."""
    command = [sys.executable, "-m", "benchmarks.viewers", url, "--count", str(count), "--while", str(switch)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        switch.with_name(switch.name + ".end").touch()
        text, _ = process.communicate(timeout=30)
        if process.returncode or '"errors": []' not in text or '"runs": 0' in text:
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
def while_exists(switch: Path) -> Iterator[None]:
    """Let whoever watches this file work."""
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()


def measure(url: str, folder: Path, rounds: int, seconds: float, with_browser: bool) -> list[Window]:
    """Run the phases in turn."""
    windows: list[Window] = []
    for number in range(rounds):
        phases = {
            "alone": contextlib.nullcontext(),
            "two viewers": while_exists(folder / "viewers"),
            "busy, inside": while_exists(folder / "inside"),
            "busy, outside": while_exists(folder / "outside"),
        }
        if with_browser:
            phases["browser"] = browser(url)
        for name in phases if number % 2 == 0 else reversed(list(phases)):
            with phases[name]:
                time.sleep(SETTLE_VIEWERS_S if name == "two viewers" else SETTLE_S)
                begin_s = time.monotonic()
                time.sleep(seconds)
                windows.append((name, begin_s, time.monotonic()))
    time.sleep(2 * SETTLE_S)  # until the last steps are written
    return windows


def main(argv: list[str]) -> int:
    """Run the phases in turn; print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks observer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--users", type=int, default=32, help="of the closed loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--browser", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = multiprocessing.get_context("spawn").Process(
            target=busy_loop, args=(folder / "outside",), kwargs={"ends_with": os.getpid()}, daemon=True
        )
        other.start()
        with served(folder, args.users, args.seed) as url, viewers(url, folder / "viewers", 2):
            windows = measure(url, folder, args.rounds, args.seconds, args.browser)
        other.terminate()
        steps = read_steps(folder / "steps")
    found: dict[str, list[float]] = {}
    for phase, begin_s, end_s in windows:
        found.setdefault(phase, []).append(tokens_per_s(steps, begin_s, end_s))
    _print_phases(steps, windows, found)
    line: dict[str, object] = {"benchmark": "observer"}
    pairs = {"two_viewers": ("two viewers", "alone"), "busy_thread": ("busy, inside", "busy, outside")}
    if args.browser:
        pairs["browser"] = ("browser", "alone")
    for key, (above, below) in pairs.items():
        ratios = [a / b for a, b in zip(found[above], found[below], strict=True)]
        line[f"ratio_{key}"] = round(statistics.median(ratios), 4)
        line[f"interval_{key}"] = [round(v, 4) for v in median_interval(ratios)]
    line["output_tokens_per_s"], line["spread"] = median_and_spread(found["alone"])
    line |= {
        "device": "cpu" if not _has_cuda() else "cuda",
        "threads": os.cpu_count(),
        "dtype": os.environ.get("BATCHSCOPE_DTYPE") or "bfloat16",
        "model": os.environ.get("BATCHSCOPE_MODEL") or "smollm2",
        "load": f"closed loop, {args.users} users without thinking, prompts of 24 and answers of 150 to 450 tokens",
        "seed": args.seed,
        "rounds": args.rounds,
        "seconds": args.seconds,
    }
    print_json_line(line)
    return 0


def _print_phases(steps: Sequence[StepLine], windows: Sequence[Window], found: dict[str, list[float]]) -> None:
    """Rate of each phase, and where a step's time went in it."""
    rows = []
    for name, values in found.items():
        spans = [(begin_s, end_s) for phase, begin_s, end_s in windows if phase == name]
        inside = [s for s in steps if any(begin_s <= s.end_s <= end_s for begin_s, end_s in spans)]
        between = [b.end_s - a.end_s - b.forward_s for a, b in itertools.pairwise(inside) if b.end_s - a.end_s < 2.0]
        forward_ms = 1e3 * statistics.median(s.forward_s for s in inside)
        rows.append([name, *median_and_spread(values), forward_ms, 1e3 * statistics.median(between)])
    print_table(["phase", "output tokens/s", "spread", "forward ms", "rest of a step ms"], rows)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
