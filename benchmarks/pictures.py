"""The pictures of docs/pictures, taken anew from the dashboard under load; needs chromium and the test requirements.

    python -m benchmarks pictures [--users N] [--only live,roofline] [--theme dark] [--out docs/pictures]

One dashboard on the real model under its first load, one browser, 1440 pixels wide. Pages that show the result of
something (a tour, a fork, a failure mode, a report) are used as a person would use them before the picture is taken; that
takes minutes, and these come last, because they begin the run anew.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.dashboard import served
from benchmarks.report import print_json_line

ROOT = Path(__file__).resolve().parents[1]
WIDE, HIGH = 1440, 900
MAX_BYTES = 300_000
WARM_UP_S = 45.0
RESULT_S = 420.0
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

Prepare = Callable[[Any], None]


def _wait_for(page: Any, text: str, limit_s: float = RESULT_S) -> None:
    page.get_by_text(text).first.wait_for(timeout=1e3 * limit_s)


def _press(name: str) -> Prepare:
    return lambda page: page.get_by_role("button", name=name).first.click()


def _sent_prompt(page: Any) -> None:
    page.get_by_role("spinbutton", name="copies").fill("3")
    page.get_by_role("spinbutton", name="copies").press("Tab")
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Send").first.click()
    page.wait_for_timeout(25_000)


def _watched(page: Any) -> None:
    page.get_by_role("button", name="Watch this dashboard").first.click()
    page.wait_for_timeout(45_000)


def _swept(page: Any) -> None:
    page.get_by_role("button", name="Run the sweep").first.click()
    page.wait_for_timeout(60_000)


def _toured(page: Any) -> None:
    page.get_by_role("button", name="Begin").first.click()
    for _ in range(3):
        page.wait_for_timeout(20_000)
        page.get_by_role("button", name="Next").first.click()
    page.wait_for_timeout(25_000)


def _reported(page: Any) -> None:
    page.get_by_role("button", name="Make bundle and report").first.click()
    page.wait_for_timeout(60_000)


def _compared(page: Any) -> None:
    page.get_by_role("button", name="Run both").first.click()
    _wait_for(page, "token for token")
    page.wait_for_timeout(2000)


def _cured(page: Any) -> None:
    page.get_by_role("button", name="Run it, then cure it").first.click()
    _wait_for(page, "cure: batch_policy")
    page.wait_for_timeout(2000)


SHOTS: tuple[tuple[str, str, Prepare | None, int], ...] = (
    ("home", "", None, HIGH),
    ("live", "live", None, HIGH),
    ("kv_blocks", "kv_blocks", None, HIGH),
    ("roofline", "roofline", None, HIGH),
    ("latency", "latency", None, HIGH),
    ("story", "story", None, HIGH),
    ("scheduler", "scheduler", None, HIGH),
    ("prompt", "prompt", _sent_prompt, HIGH),
    ("attach", "attach", _watched, HIGH),
    ("what_if", "what_if", _press("Twice the seats"), HIGH),
    ("sweep", "sweep", _swept, HIGH),
    ("reports", "reports", _reported, HIGH),
    ("tour", "tour", _toured, HIGH),
    ("compare", "compare", _compared, HIGH),
    ("failure_modes", "failure_modes", _cured, 1240),
)
"""(name, path, what is done before, height)."""


def take(context: Any, url: str, name: str, path: str, prepare: Prepare | None, height: int, folder: Path) -> Path:
    """One picture as it comes from the browser."""
    page = context.new_page()
    page.set_viewport_size({"width": WIDE, "height": height})
    page.goto(f"{url}/{path}")
    page.get_by_label("Engine status").wait_for()
    page.wait_for_timeout(5000)
    if prepare is not None:
        prepare(page)
    page.wait_for_timeout(12_000 if path == "what_if" else 4000)
    page.mouse.move(0, 0)
    target = folder / f"{name}.png"
    page.screenshot(path=target)
    page.close()
    return target


def small(source: Path, target: Path) -> int:
    """Store a picture with at most 256 colours; returns its bytes.

    Raises:
        SystemExit: if it is larger than MAX_BYTES all the same.
    """
    from PIL import Image

    Image.open(source).convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        target, optimize=True
    )
    size = target.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{target} has {size} bytes; more than {MAX_BYTES} are too many for a repository")
    return size


def main(argv: list[str]) -> int:
    """Take the pictures; print the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures", description=__doc__)
    parser.add_argument("--users", type=int, help="of the closed loop; what the dashboard starts with by default")
    parser.add_argument("--only", default="", help="names, with commas; all by default")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    args = parser.parse_args(argv)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not on the path")
    from playwright.sync_api import sync_playwright

    chosen = [shot for shot in SHOTS if not args.only or shot[0] in args.only.split(",")]
    args.out.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        folder = Path(work)
        with served(folder, **({"BATCHSCOPE_USERS": str(args.users)} if args.users else {})) as found:
            time.sleep(WARM_UP_S)
            browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
            context = browser.new_context(color_scheme=args.theme)
            context.set_default_timeout(60_000)
            for name, path, prepare, height in chosen:
                sizes[name] = small(take(context, found.url, name, path, prepare, height, folder), args.out / f"{name}.png")
                print(f"{name}: {sizes[name]} bytes", flush=True)
            browser.close()
    print_json_line(
        {"benchmark": "pictures", "pictures": len(sizes), "bytes": sum(sizes.values()), "largest": max(sizes.values())}
    )
    return 0
