"""What one refresh of a page costs at 64 running and 200 waiting requests and 4,096 blocks: Python time and bytes.

    python -m benchmarks tick [--seconds 8] [--pages live,kv_blocks,...]

One viewer at the default refresh, without a browser. tick_ms and tick_bytes are medians over the ticks of the page that
costs most; cpu is the CPU time of the thread that draws, wall includes what it waits for the interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.dashboard_server import serving
from benchmarks.report import print_json_line, print_table
from benchmarks.viewers import watch

PAGES = ("live", "kv_blocks", "roofline", "latency", "scheduler", "home", "story", "failure_modes")


def measure(url: str, page: str, seconds: float, log: Path) -> tuple[float, float, int, int]:
    """Medians over the ticks of a page: wall ms, CPU ms, bytes; and the number of ticks."""
    log.write_text("")
    (viewer,) = asyncio.run(watch(url, "" if page == "home" else page, 1, seconds))
    if viewer.errors:
        raise SystemExit(f"the page {page} failed: {viewer.errors}")
    times = [line.split("\t")[:2] for line in log.read_text().splitlines()][1:]
    sizes = viewer.run_bytes[1:]
    if not times or not sizes:
        raise SystemExit(f"the page {page} did not tick within {seconds:g} s; give --seconds more")
    wall, cpu = (statistics.median(1e3 * float(t[k]) for t in times) for k in (0, 1))
    return wall, cpu, round(statistics.median(sizes)), len(times)


def main(argv: list[str]) -> int:
    """Look at each page for a while; print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tick", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="on each page")
    parser.add_argument("--pages", default=",".join(PAGES))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ticks")
        with serving("benchmarks.heavy_app:app", {"BATCHSCOPE_TICK_FILE": str(log)}) as (url, _):
            time.sleep(2.0)
            found = {page: measure(url, page, args.seconds, log) for page in args.pages.split(",")}
    print_table(["page", "wall ms", "CPU ms", "bytes", "ticks"], [[page, *values] for page, values in found.items()])
    slowest = max(found, key=lambda page: found[page][0])
    largest = max(found, key=lambda page: found[page][2])
    print_json_line(
        {
            "benchmark": "tick",
            "tick_ms": found[slowest][0],
            "tick_cpu_ms": found[slowest][1],
            "tick_bytes": found[largest][2],
            "slowest_page": slowest,
            "largest_page": largest,
            "running": 64,
            "waiting": 200,
            "blocks": 4096,
            "seconds": args.seconds,
        }
    )
    return 0
