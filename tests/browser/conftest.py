"""One dashboard on the real model and one headless chromium for all tests of this folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from benchmarks.dashboard import START_LIMIT_S, free_port

ROOT = Path(__file__).resolve().parents[2]
PICTURES = Path(os.environ.get("BATCHSCOPE_PICTURES") or ROOT / "build" / "pictures")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass(frozen=True)
class Dashboard:
    """A running server: where it listens, its process, and the file that its output goes to."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def start_dashboard(folder: Path, **environment: str) -> Dashboard:
    """Start `streamlit run app.py` and wait until it answers."""
    port = free_port()
    log = folder / "server.log"
    started_s = time.monotonic()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), "--server.headless", "true"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}, start_new_session=True
        )
    dashboard = Dashboard(f"http://127.0.0.1:{port}", process, log, started_s)
    while time.monotonic() < started_s + START_LIMIT_S:
        if process.poll() is not None:
            raise AssertionError(f"the server ended at start:\n{dashboard.output()}")
        try:
            with urllib.request.urlopen(dashboard.url + "/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return dashboard
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    stop_dashboard(dashboard)
    raise AssertionError(f"the server does not answer:\n{dashboard.output()}")


def stop_dashboard(dashboard: Dashboard) -> float:
    """Ask the server to end as a service manager would; return how long it took, s."""
    begun_s = time.monotonic()
    dashboard.process.send_signal(signal.SIGTERM)
    try:
        dashboard.process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(dashboard.process.pid, signal.SIGKILL)
        dashboard.process.wait(5)
    return time.monotonic() - begun_s


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    if CHROMIUM is None:
        pytest.skip("chromium is not on the path")
    # Few users: on two cores the engine would otherwise leave the browser too little to paint with.
    running = start_dashboard(
        tmp_path_factory.mktemp("dashboard"), BATCHSCOPE_USERS="2", BATCHSCOPE_THINK_S="6", BATCHSCOPE_RAMP_S="0"
    )
    yield running
    if running.process.poll() is None:
        os.killpg(running.process.pid, signal.SIGKILL)  # how it ends when asked has a test of its own
        running.process.wait(5)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not on the path")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One set of cookies and one cache for a module: scripts are fetched and compiled once, as for a person."""
    opened = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="dark")
    opened.set_default_timeout(120_000)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    opened = context.new_page()
    yield opened
    opened.close()


def status_bar(page: Page) -> str:
    """The text of the status bar, its thin spaces made plain."""
    return re.sub(r"\s+", " ", page.get_by_label("Engine status").inner_text())


def step_number(page: Page) -> int:
    """The engine step that the page shows."""
    text = page.get_by_label("Engine status").locator(".step .figure").inner_text()
    return int(re.sub(r"\D", "", text) or 0)


def wait_for_tokens(page: Page, limit_s: float = 120.0) -> None:
    """Wait until steps are counted and tokens are made."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        text = status_bar(page)
        if step_number(page) > 5 and re.search(r"[1-9][\d.]* tok/s", text):
            return
        time.sleep(0.2)
    raise AssertionError(f"no tokens within {limit_s} s; the status bar says: {status_bar(page)}")


def open_page(page: Page, dashboard: Dashboard, path: str, question: str) -> None:
    """Open a page of the dashboard and wait for its heading."""
    page.goto(f"{dashboard.url}/{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(question, timeout=120_000)
    expect(page.get_by_label("Engine status")).to_be_visible(timeout=120_000)
