"""The block map and the roofline in a real browser, on scenery: no flicker, colour modes, narrow screens, zoom that stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.browser.conftest import ROOT, free_port, step_number

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DRAWN = """(canvas) => {
  if (!canvas.width) return 0;
  const pixels = canvas.getContext("2d").getImageData(canvas.width / 2, 0, 20, canvas.height).data;
  let n = 0;
  for (let i = 3; i < pixels.length; i += 4) n += pixels[i] > 0;
  return n / (pixels.length / 4);
}"""

WATCH = """(canvas) => {
  const map = canvas.closest(".root").blockMap;
  const seen = (map.seen = { blank: 0, looked: 0, packets: 0 });
  const receive = map.receive.bind(map);
  map.receive = (component) => { seen.packets += 1; receive(component); };
  const look = () => {
    seen.looked += 1;
    const row = canvas.getContext("2d").getImageData(canvas.width / 2, 0, 1, canvas.height).data;
    let ink = 0;
    for (let i = 3; i < row.length; i += 4) ink += row[i] > 0;
    if (!ink) seen.blank += 1;
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """A busy machine is slow, not wrong."""
    expect.set_options(timeout=90_000)
    yield
    expect.set_options(timeout=5_000)


@pytest.fixture(scope="module")
def scenery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard on a fake run that plays; its address."""
    port, log = free_port(), tmp_path_factory.mktemp("scenery") / "server.log"
    command = [sys.executable, "-m", "streamlit", "run", "tests/fake_app.py", "--server.port", str(port), "--", "busy"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ))
    try:
        _wait_for(f"http://127.0.0.1:{port}/_stcore/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s:
        assert server.poll() is None, log.read_text(errors="replace")
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"no answer from {address}: {log.read_text(errors='replace')}")


def canvas_of(page: Page) -> Locator:
    """The canvas; it lives in a shadow root, which locators see through and the document's own queries do not."""
    return page.locator("canvas.base")


def until(page: Page, true: Callable[[], bool], limit_s: float = 90.0) -> None:
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, "it did not happen in time"
        page.wait_for_timeout(200)


def at_rest(page: Page, clip: FloatRect) -> bytes:
    """A picture of a part of the page that is the same half a second later."""
    seen = [page.screenshot(clip=clip)]

    def rests() -> bool:
        page.wait_for_timeout(400)
        seen.append(page.screenshot(clip=clip))
        return seen[-1] == seen[-2]

    until(page, rests)
    return seen[-1]


def open_map(page: Page, address: str, query: str = "") -> None:
    page.goto(f"{address}/kv_blocks{query}")
    expect(canvas_of(page)).to_be_visible()
    until(page, lambda: bool(canvas_of(page).evaluate(DRAWN) > 0.5))


def test_the_map_is_never_blank_and_is_not_built_anew(page: Page, scenery: str) -> None:
    open_map(page, scenery)
    canvas = canvas_of(page)
    canvas.evaluate("c => { c.dataset.mine = 'yes' }")
    canvas.evaluate(WATCH)
    until(page, lambda: bool(canvas.evaluate("c => c.closest('.root').blockMap.seen.packets") >= 8), 90)
    seen = canvas.evaluate("c => c.closest('.root').blockMap.seen")
    assert seen["looked"] > 20
    assert seen["blank"] == 0
    assert canvas.get_attribute("data-mine") == "yes"


def test_each_colour_mode_draws_and_says_what_it_shows(page: Page, scenery: str) -> None:
    open_map(page, scenery)
    pictures = set()
    for mode, legend in (
        ("state", "live"), ("last use", "steps ago"), ("fill", "0 to 100 %"), ("sharing", "1 ref"), ("owner", "hue of the owner")
    ):  # fmt: skip
        page.get_by_role("radio", name=mode, exact=True).click()
        expect(page.locator(".legend")).to_contain_text(legend)
        until(page, lambda: bool(canvas_of(page).evaluate(DRAWN) > 0.5))
        pictures.add(canvas_of(page).evaluate("c => c.toDataURL().length"))
    assert len(pictures) > 2


@pytest.mark.parametrize(("width", "columns"), [(1440, 64), (390, 32)])
def test_rows_fit_the_screen(page: Page, scenery: str, width: int, columns: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    open_map(page, scenery)
    grid = canvas_of(page).evaluate("c => c.closest('.root').blockMap.grid")
    assert grid["cols"] == columns
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_zoom_on_the_roofline_outlives_the_ticks(page: Page, scenery: str) -> None:
    page.goto(f"{scenery}/roofline")
    chart = page.locator("[data-testid='stVegaLiteChart'] canvas").first
    expect(chart).to_be_visible()
    page.wait_for_timeout(1000)
    chart.evaluate("c => { c.dataset.mine = 'yes' }")
    box = chart.bounding_box()
    assert box is not None
    corner = {"x": box["x"], "y": box["y"] + box["height"] - 60, "width": box["width"], "height": 40}
    whole = at_rest(page, corner)  # the labels of the intensity axis
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Shift")
    for _ in range(6):
        page.mouse.wheel(0, -200)
    page.keyboard.up("Shift")
    until(page, lambda: page.screenshot(clip=corner) != whole)
    zoomed, step = at_rest(page, corner), step_number(page)
    until(page, lambda: step_number(page) > step + 20)  # some refreshes
    assert page.screenshot(clip=corner) == zoomed
    assert chart.get_attribute("data-mine") == "yes"
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(page, lambda: page.screenshot(clip=corner) != zoomed)
