"""A new user's first minutes: the real server, the real model, every page in a browser."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from core.bundle import read_bundle
from core.charts import formats
from tests.browser.conftest import PICTURES, Dashboard, open_page, status_bar, step_number, stop_dashboard, wait_for_tokens
from tests.live_cases import crowding, wait_until

pytestmark = [pytest.mark.browser]

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
PREDICTED = "Predicted beside observed"


def test_tokens_flow_soon_after_the_start(page: Page, dashboard: Dashboard) -> None:
    open_page(page, dashboard, "live", PAGES["live"])
    wait_for_tokens(page)
    print(f"tokens flow {time.monotonic() - dashboard.started_s:.1f} s after the start")
    first = step_number(page)
    until_step(page, first + 1)


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
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES[path], timeout=120_000)
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
    expect(row).to_contain_text("this dashboard", timeout=120_000)
    expect(row).to_contain_text("live", timeout=120_000)
    expect(row.locator("td").nth(5)).to_contain_text(re.compile(r"[1-9]"), timeout=120_000)
    expect(page.get_by_text("the server's own counters")).to_be_visible(timeout=120_000)
    page.wait_for_timeout(1_000)
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "attach.png")


@pytest.mark.slow
def test_a_watched_server_is_taken_into_what_if(page: Page, dashboard: Dashboard) -> None:
    open_page(page, dashboard, "attach", "What binds a server")
    wait_for_tokens(page)
    watch = page.get_by_role("button", name="Watch this dashboard")
    if not page.locator(".bs-servers tbody tr").count():
        watch.click()
    expect(page.locator(".bs-servers tbody tr")).to_contain_text("live", timeout=120_000)
    page.get_by_role("tab", name=PREDICTED).click()
    take = page.get_by_role("button", name="Open in What-if")
    end_s = time.monotonic() + 90
    while not take.is_enabled() and time.monotonic() < end_s:  # too little was seen of the load at first
        page.get_by_role("button", name="Take configuration and load, predict").click()
        page.wait_for_timeout(4_000)
    take.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES["what_if"], timeout=120_000)
    expect(page.get_by_test_id("stMain").get_by_text("SmolLM2-135M", exact=False).first).to_be_visible(timeout=120_000)
    expect(page.locator("[data-testid=stException]")).to_have_count(0)
    page.wait_for_timeout(2_000)
    page.screenshot(path=PICTURES / "what_if_taken.png")


@pytest.mark.slow
def test_a_run_is_taken_home_and_opened_again_on_every_page(page: Page, dashboard: Dashboard, tmp_path: Path) -> None:
    open_page(page, dashboard, "reports", "What do I take away")
    wait_for_tokens(page)
    page.get_by_role("button", name="Make bundle and report").click()
    expect(page.get_by_text("All files are there.")).to_be_visible(timeout=240_000)
    page.screenshot(path=PICTURES / "reports.png")
    kept: dict[str, Path] = {}
    for name, file in (("Report, HTML", "run.html"), ("Run bundle", "run.bundle.zip"), ("Report, PDF", "run.pdf")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name, exact=True).click()
        kept[file] = tmp_path / file
        waiting.value.save_as(kept[file])
    bundle = read_bundle(kept["run.bundle.zip"])
    assert bundle.steps
    assert kept["run.pdf"].read_bytes().startswith(b"%PDF")
    outside: list[str] = []
    report = page.context.new_page()
    report.on("request", lambda asked: outside.append(asked.url) if asked.url.startswith("http") else None)
    report.goto(kept["run.html"].as_uri())
    expect(report.locator("canvas, svg").first).to_be_visible(timeout=120_000)
    assert outside == [], "the report must need no network"
    report.close()
    page.locator("input[type=file]").set_input_files(kept["run.bundle.zip"])
    page.get_by_role("button", name="Open this bundle").click()
    mark = page.locator(".bs-replay")
    expect(mark).to_contain_text("REPLAY", timeout=120_000)
    for path in ("live", "kv_blocks", "roofline", "latency", "scheduler", "story", "reports"):
        page.locator(f'[data-testid="stSidebarNavLink"][href$="/{path}"]').click()
        expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=120_000)
        expect(mark).to_contain_text("Every number on this page is replayed", timeout=120_000)
        expect(page.get_by_text("This page failed")).to_have_count(0)
        expect(page.locator("[data-testid=stException]")).to_have_count(0)
        if path == "kv_blocks":
            saves_a_figure(page, tmp_path)
    page.get_by_role("button", name="Last step").click()
    expect(mark).to_contain_text(f"of {formats.count(bundle.steps[-1].step)}", timeout=120_000)
    page.screenshot(path=PICTURES / "reports_replay.png")
    page.get_by_role("button", name="Back to the live engine").click()
    expect(mark).to_have_count(0, timeout=120_000)


def saves_a_figure(page: Page, folder: Path) -> None:
    """The block map as PDF and its cells as CSV, by the control at its corner."""
    page.get_by_role("button", name="Save this figure").first.click()
    for label, begin in (("PDF", b"%PDF"), ("CSV", b'"block","column","row"')):
        with page.expect_download() as waiting:
            page.locator("button.format", has_text=label).filter(visible=True).first.click()
        assert waiting.value.suggested_filename.startswith("kv_map")
        waiting.value.save_as(folder / label)
        assert (folder / label).read_bytes().startswith(begin)


def workers_of(dashboard: Dashboard) -> list[int]:
    """Processes of the model; simulations and reports have processes of their own."""
    children = [int(c) for t in Path(f"/proc/{dashboard.process.pid}/task").glob("*/children") for c in t.read_text().split()]
    return [pid for pid in children if b"worker_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_killed_worker_is_back_while_somebody_watches_and_no_request_is_lost(visitor: Page, dashboard: Dashboard) -> None:
    wait_for_tokens(visitor)
    (worker,) = workers_of(dashboard)
    body = {"prompt": "one two three", "max_tokens": 48, "ignore_eos": True, "temperature": 0}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{dashboard.url}/v1/completions", json=body, timeout=120)
        before = step_number(visitor)
        until_step(visitor, before + 3)
        os.kill(worker, signal.SIGKILL)
        killed_s, at = time.monotonic(), step_number(visitor)
        until_step(visitor, at + 3)
        back_s = time.monotonic() - killed_s
        found = answer.result().json()
    print(f"steps go on {back_s:.1f} s after the worker was killed")
    assert back_s < 10 * crowding()
    assert "usage" in found, found
    assert found["usage"]["completion_tokens"] == 48, "a request that was running is answered whole"
    assert found["choices"][0]["finish_reason"] == "length"
    (another,) = workers_of(dashboard)
    assert another != worker


def until_step(page: Page, step: int, limit_s: float = 90.0) -> None:
    end_s = time.monotonic() + limit_s
    while step_number(page) < step:
        assert time.monotonic() < end_s, f"step {step} was not seen within {limit_s:.0f} s; {status_bar(page)}"
        page.wait_for_timeout(100)


def test_the_log_is_clean(dashboard: Dashboard) -> None:
    log = dashboard.output()
    for word in ("Traceback", "missing ScriptRunContext", "Exception in thread"):
        assert word not in log, log[-4000:]


def test_sigterm_ends_server_engine_and_worker(dashboard: Dashboard) -> None:
    workers = workers_of(dashboard)
    assert workers, "the model runs in a process of its own"
    assert stop_dashboard(dashboard) < 5.0 * crowding()
    assert dashboard.process.returncode is not None
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 5.0 * crowding(), f"the end of {workers}")
