"""A new user's first minutes: the real server, the real model, every page in a browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import PICTURES, Dashboard, open_page, status_bar, step_number, stop_dashboard, wait_for_tokens

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("server")]

PAGES = {
    "": "How is one model serving",
    "live": "What is in the batch",
    "kv_blocks": "Who holds which KV block",
    "roofline": "Is the batch bound by",
    "latency": "How long do requests wait",
    "tour": "What does a batch gain",
    "story": "What happened to this request",
    "prompt": "",
    "scheduler": "Why does the batch look like this",
    "failure_modes": "What goes wrong",
    "what_if": "What would happen",
    "sweep": "Which configuration is best",
    "compare": "What does another configuration do",
}


def test_tokens_flow_soon_after_the_start(page: Page, dashboard: Dashboard) -> None:
    open_page(page, dashboard, "live", PAGES["live"])
    wait_for_tokens(page)
    print(f"tokens flow {time.monotonic() - dashboard.started_s:.1f} s after the start")
    first = step_number(page)
    end_s = time.monotonic() + 20
    while step_number(page) <= first and time.monotonic() < end_s:
        time.sleep(0.2)
    assert step_number(page) > first, "the page stands still while the engine runs"


@pytest.fixture(scope="module")
def visitor(context: BrowserContext, dashboard: Dashboard) -> Iterator[Page]:
    """One tab that goes from page to page by the menu, as a person does."""
    opened = context.new_page()
    open_page(opened, dashboard, "", PAGES[""])
    yield opened
    opened.close()


@pytest.mark.parametrize("path", sorted(PAGES))
def test_every_page_shows_the_live_engine(path: str, visitor: Page) -> None:
    page = visitor
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    if path:
        page.locator(f'[data-testid="stSidebarNavLink"][href$="/{path}"]').click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES[path], timeout=60_000)
    wait_for_tokens(page)
    page.wait_for_timeout(1500)
    assert "SmolLM2-135M" in status_bar(page)
    expect(page.get_by_text("This page failed")).to_have_count(0)
    expect(page.locator("[data-testid=stException]")).to_have_count(0)
    assert errors == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{path or 'home'}.png")


def test_the_dashboard_watches_itself_over_its_own_port(page: Page, dashboard: Dashboard) -> None:
    open_page(page, dashboard, "attach", "What binds a server")
    page.get_by_role("button", name="Watch this dashboard").click()
    row = page.locator(".bs-servers tbody tr")
    expect(row).to_contain_text("this dashboard", timeout=30_000)
    expect(row).to_contain_text("live", timeout=30_000)
    expect(row.locator("td").nth(5)).to_contain_text(re.compile(r"[1-9]"), timeout=30_000)
    expect(page.get_by_text("the server's own counters")).to_be_visible(timeout=30_000)
    page.wait_for_timeout(3_000)
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "attach.png")


def test_the_log_is_clean(dashboard: Dashboard) -> None:
    log = dashboard.output()
    for word in ("Traceback", "missing ScriptRunContext", "Exception in thread"):
        assert word not in log, log[-4000:]


def test_sigterm_ends_server_engine_and_worker(dashboard: Dashboard) -> None:
    workers = [
        int(c) for task in Path(f"/proc/{dashboard.process.pid}/task").glob("*/children") for c in task.read_text().split()
    ]
    assert workers, "the model runs in a process of its own"
    assert stop_dashboard(dashboard) < 5.0
    assert dashboard.process.returncode is not None
    end_s = time.monotonic() + 5.0
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < end_s, f"worker processes {workers} live on"
        time.sleep(0.1)
