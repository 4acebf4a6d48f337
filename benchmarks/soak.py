"""The dashboard for hours: does its memory stay level, and how many threads and refreshes were there?

    python -m benchmarks soak --minutes 30 [--viewers 2] [--pages live,kv_blocks] [--users 32]

Viewers look at the pages at the default refresh while the first load keeps the engine busy. rss_growth_mb is the median
resident size of the server process over the last tenth of the time less that over the first tenth after the warm-up;
the worker process, which holds the model, is told beside it. MB = 1e6 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import threading
import time
from pathlib import Path

from benchmarks.dashboard_server import serving
from benchmarks.report import print_json_line, print_table
from benchmarks.viewers import Viewer, watch

WARM_UP_SHARE = 0.2
SAMPLE_S = 2.0


def status(pid: int) -> tuple[float, int]:
    """(resident MB, threads) of a process from /proc."""
    text = Path(f"/proc/{pid}/status").read_text()
    size, threads = re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE), re.search(r"^Threads:\s+(\d+)", text, re.MULTILINE)
    return (int(size[1]) * 1024 / 1e6 if size else 0.0, int(threads[1]) if threads else 0)


def children(pid: int) -> list[int]:
    """Processes that this one started."""
    return [int(c) for task in Path(f"/proc/{pid}/task").glob("*/children") for c in task.read_text().split()]


class Samples:
    """Sizes and threads over time, taken beside the viewers."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.server: list[tuple[float, int]] = []
        self.worker: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.server.append(status(self.pid))
            self.worker.append(sum(status(child)[0] for child in children(self.pid)))

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def growth(values: list[float]) -> float:
    """Median of the last tenth less median of the first tenth after the warm-up."""
    warm = values[int(len(values) * WARM_UP_SHARE) :]
    part = max(len(warm) // 10, 1)
    return statistics.median(warm[-part:]) - statistics.median(warm[:part])


async def _watch_all(url: str, pages: list[str], count: int, seconds: float) -> list[Viewer]:
    groups = await asyncio.gather(*(watch(url, page, count, seconds) for page in pages))
    return [viewer for group in groups for viewer in group]


def main(argv: list[str]) -> int:
    """Watch for so many minutes; print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--viewers", type=int, default=2, help="of each page")
    parser.add_argument("--pages", default="live,kv_blocks")
    parser.add_argument("--users", type=int, default=32, help="of the closed loop")
    args = parser.parse_args(argv)
    seconds = 60 * args.minutes
    environment = {"BATCHSCOPE_USERS": str(args.users), "BATCHSCOPE_THINK_S": "0", "BATCHSCOPE_RAMP_S": "0"}
    with serving("app:app", environment) as (
        url,
        server,
    ):
        time.sleep(min(20.0, seconds / 4))
        with Samples(server.pid) as samples:
            viewers = asyncio.run(_watch_all(url, args.pages.split(","), args.viewers, seconds))
    errors = sorted({error for viewer in viewers for error in viewer.errors})
    if errors:
        raise SystemExit(f"a page failed: {errors}")
    sizes, threads = [s for s, _ in samples.server], [n for _, n in samples.server]
    ticks = [size for viewer in viewers for size in viewer.run_bytes[1:]]
    part = max(len(ticks) // 10, 1)
    rows: list[list[object]] = [
        ["server, MB at the end", sizes[-1]],
        ["server, growth after warm-up, MB", growth(sizes)],
        ["worker, growth after warm-up, MB", growth(samples.worker)],
        ["threads, least", min(threads)],
        ["threads, most", max(threads)],
        ["refreshes", len(ticks)],
        ["bytes of a refresh, median", statistics.median(ticks)],
        ["bytes of a refresh, last tenth", statistics.median(ticks[-part:])],
    ]
    print_table(["", "value"], rows)
    print_json_line(
        {
            "benchmark": "soak",
            "rss_growth_mb": round(growth(sizes), 2),
            "worker_growth_mb": round(growth(samples.worker), 2),
            "rss_mb": round(sizes[-1], 1),
            "threads": max(threads),
            "refreshes": len(ticks),
            "minutes": args.minutes,
            "viewers": len(viewers),
            "users": args.users,
        }
    )
    return 0
