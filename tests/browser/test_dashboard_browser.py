"""The dashboard as its users have it, on scenery in a real browser: control, links, looking back, safety, themes, pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from core.outputs import BoundBy
from tests.browser.conftest import PICTURES, ROOT, free_port, status_bar, step_number
from tests.browser.test_block_canvas_browser import _wait_for, canvas_of

pytestmark = [pytest.mark.browser]

STORED = Path(__file__).resolve().parent / "pictures"
T = TypeVar("T")
CELL = 24
"""Pictures are compared by the mean colour of cells of so many pixels: letters may fall a little differently."""


def serve(scene: str, folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "streamlit", "run", "tests/fake_app.py", "--server.port", str(port), "--", scene]
    with log.open("wb") as out:
        server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ))
    try:
        _wait_for(f"http://127.0.0.1:{port}/_stcore/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve("busy", tmp_path_factory.mktemp("playing"))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve("frozen", tmp_path_factory.mktemp("frozen"))


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """A busy machine is slow, not wrong."""
    expect.set_options(timeout=120_000)
    yield
    expect.set_options(timeout=5_000)


def until(page: Page, true: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, f"not within {limit_s:.0f} s: {what}"
        page.wait_for_timeout(100)  # not sleep: the browser's news, such as a new address, arrive meanwhile


def still(page: Page, look: Callable[[], T], what: str) -> T:
    """What `look` gives once it gives the same twice in a row, half a second apart."""
    seen = [look()]

    def rests() -> bool:
        page.wait_for_timeout(400)
        seen.append(look())
        return seen[-1] == seen[-2]

    until(page, rests, f"{what} comes to rest")
    return seen[-1]


def visit(page: Page, address: str) -> Page:
    page.goto(address)
    expect(page.get_by_label("Engine status")).to_be_visible()
    return page


def another(browser: Browser, **options: object) -> Page:
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark", **options})  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    return context.new_page()


def button(page: Page, name: str) -> object:
    return page.get_by_label("Engine status").get_by_role("button", name=name)


def test_two_browsers_see_the_same_step_and_only_one_has_control(page: Page, browser: Browser, playing: str) -> None:
    visit(page, f"{playing}/story")
    second = visit(another(browser), f"{playing}/story")
    pause, other = button(page, "Pause at the next step boundary"), button(second, "Pause at the next step boundary")
    until(page, lambda: pause.is_enabled() and other.is_enabled(), "both may take control while nobody has it")
    pause.click()
    until(page, lambda: "paused" in status_bar(page) and "paused" in status_bar(second), "the pause is seen by both")
    until(page, lambda: step_number(page) == step_number(second), "both show the same step")
    assert button(second, "Start").is_disabled()
    assert "viewer" in status_bar(second)
    second.get_by_text("Scheduler", exact=True).last.click()
    expect(second.get_by_label("max_num_seqs", exact=True)).to_be_disabled()
    before = step_number(page)
    button(page, "Run one step").click()
    until(page, lambda: step_number(page) == before + 1 == step_number(second), "one step, seen by both")
    page.reload()  # the tab is new; control does not stay with the one that is gone
    until(page, lambda: button(page, "Start").is_enabled(), "control is free at once after a reload")
    button(page, "Start").click()
    until(page, lambda: step_number(second) > before + 2, "it goes on")
    second.context.close()


def test_a_script_in_a_prompt_stays_text(page: Page, playing: str) -> None:
    attack = "<img src=x onerror='window.stolen=1'><script>window.stolen=1</script> **bold** [link](javascript:alert(1))"
    visit(page, f"{playing}/prompt")
    box = page.get_by_label("Prompt", exact=True)
    box.fill(attack)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("<script>window.stolen=1</script>").first).to_be_visible()
    page.wait_for_timeout(1500)
    assert page.evaluate("window.stolen") is None
    assert page.locator("img[src='x']").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0


@pytest.mark.slow
def test_a_link_restores_page_tab_colour_and_request(page: Page, frozen: str) -> None:
    visit(page, f"{frozen}/live")
    row = page.locator(".running [data-id]").nth(1)
    chosen = row.get_attribute("data-id")
    row.click()
    until(page, lambda: f"request={chosen}" in page.url, "the choice is in the address")
    visit(page, f"{frozen}/kv_blocks?colour=sharing&kv_details=Contiguous+alternative&request={chosen}")
    expect(page.get_by_role("radio", name="sharing", exact=True)).to_be_checked()
    expect(page.get_by_text("What would a cache without blocks reserve")).to_be_visible()
    expect(page.locator(".block-map .name")).to_have_text(str(chosen))


def test_pointing_at_a_request_shows_it_in_sets_gantt_blocks_and_roofline(page: Page, frozen: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 1800})
    visit(page, f"{frozen}/live")
    gantt, roofline = page.locator(".st-key-live_gantt canvas"), page.locator(".st-key-live_steps_map canvas")
    expect(gantt).to_be_visible()
    expect(roofline).to_be_visible()
    over = page.locator(".st-key-live_map canvas.over")
    ink = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.reduce((n, v, i) => n + (i % 4 === 3 && v > 0), 0)"
    plain = {name: still(page, canvas.screenshot, name) for name, canvas in (("gantt", gantt), ("roofline", roofline))}
    assert over.evaluate(ink) == 0
    row = page.locator(".running [data-id]").first
    row.hover()
    expect(row).to_have_class(re.compile("linked"))
    until(page, lambda: bool(over.evaluate(ink) > 0), "its blocks are outlined")
    until(page, lambda: gantt.screenshot() != plain["gantt"], "its lane stands out")
    until(page, lambda: roofline.screenshot() != plain["roofline"], "its steps stand out")
    box = gantt.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 4)
    until(page, lambda: page.locator(".row.linked").count() == 1, "a lane of the Gantt points at a row")


@pytest.mark.slow
def test_the_gantt_keeps_its_zoom_through_refreshes(page: Page, playing: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 1800})
    visit(page, f"{playing}/live")
    gantt = page.locator(".st-key-live_gantt canvas")
    expect(gantt).to_be_visible()
    box = gantt.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.keyboard.down("Shift")
    for _ in range(4):
        page.mouse.wheel(0, -250)
    page.keyboard.up("Shift")
    span = "c => c.closest('.root').gantt.span()"
    expect(page.get_by_text("view held")).to_be_visible()
    zoomed, step = still(page, lambda: gantt.evaluate(span), "the zoom"), step_number(page)
    until(page, lambda: step_number(page) > step + 5, "refreshes go on")
    assert gantt.evaluate(span) == zoomed
    expect(page.get_by_text("view held")).to_be_visible()
    gantt.dblclick()
    until(page, lambda: gantt.evaluate(span) != zoomed, "a double click follows again")


def test_looking_back_holds_a_step_and_follow_returns(page: Page, playing: str) -> None:
    visit(page, f"{playing}/live")
    until(page, lambda: step_number(page) > 3, "steps")
    slider = page.get_by_label("Look back over the recorded steps")
    until(page, lambda: int(slider.get_attribute("max") or 0) > 4, "some pictures are kept")
    slider.focus()
    page.keyboard.press("Home")
    held = page.locator(".st-key-travel .text, [class*=st-key-travel] .text")
    until(page, lambda: "ago" in held.inner_text(), "the page looks back")
    shown = held.inner_text().split(",")[0]
    until(page, lambda: "step=" in page.url, "the step is in the address")
    now = step_number(page)
    until(page, lambda: step_number(page) > now + 4, "the engine goes on meanwhile")
    assert held.inner_text().split(",")[0] == shown
    page.keyboard.press("f")
    until(page, lambda: "step=" not in page.url and "ago" not in held.inner_text(), "F follows again")


@pytest.mark.slow
def test_keys_open_pages_and_kiosk_but_not_while_one_types(page: Page, playing: str) -> None:
    visit(page, f"{playing}/live")
    page.locator("h1").first.click()
    page.keyboard.press("k")
    expect(page.get_by_test_id("stSidebar")).to_be_hidden()
    until(page, lambda: "kiosk=1" in page.url, "the kiosk is in the address")
    page.keyboard.press("k")
    expect(page.get_by_test_id("stSidebar")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    visit(page, f"{playing}/prompt")
    page.get_by_label("Prompt", exact=True).fill("")
    page.get_by_label("Prompt", exact=True).press_sequentially("k1?")
    assert page.get_by_role("dialog", name="Keyboard shortcuts").count() == 0
    expect(page.get_by_test_id("stSidebar")).to_be_visible()
    assert "/prompt" in page.url


def cells(picture: Path) -> np.ndarray:
    """Mean colour of each cell, rows x columns x 3."""
    image = Image.open(picture).convert("RGB")
    size = (image.width // CELL, image.height // CELL)
    return np.asarray(image.resize(size, Image.Resampling.BOX), dtype=float)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "theme", "width"),
    [("live", "dark", 1440), ("kv_blocks", "light", 1440), ("roofline", "dark", 1440), ("live", "light", 390)],
)
def test_a_frozen_step_looks_as_it_did(browser: Browser, frozen: str, path: str, theme: str, width: int) -> None:
    page = another(browser, viewport={"width": width, "height": 900}, color_scheme=theme)
    visit(page, f"{frozen}/{path}?rate=off")
    expect(page.locator("canvas").first).to_be_visible()
    page.wait_for_timeout(1000)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is wider than the screen"
    ground = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (ground == "rgb(14, 18, 23)") == (theme == "dark")
    name = f"{path}_{theme}_{width}.png"
    PICTURES.mkdir(parents=True, exist_ok=True)
    stored, taken = STORED / name, PICTURES / name
    if os.environ.get("BATCHSCOPE_STORE_PICTURES"):
        still(page, lambda: page.screenshot(path=taken), "the page")
        STORED.mkdir(exist_ok=True)
        Image.open(taken).quantize(96).save(stored, optimize=True)
    assert stored.exists(), f"{stored} is missing; run with BATCHSCOPE_STORE_PICTURES=1 and look at it"
    old = cells(stored)

    def looks_so() -> bool:
        page.screenshot(path=taken)
        new = cells(taken)
        assert new.shape == old.shape
        return bool((np.abs(new - old).max(axis=2) > 40).mean() < 0.06)

    # Nothing moves in it, so what is not drawn yet is all that waiting can change.
    until(page, looks_so, f"less than 6 % of the picture differs from {stored}; see {taken}")
    page.context.close()


@pytest.mark.slow
def test_a_canvas_has_words_and_a_table_beside_it(page: Page, frozen: str) -> None:
    visit(page, f"{frozen}/live?live_details=Table+view")
    expect(page.get_by_text("All requests as a table")).to_be_visible()
    visit(page, f"{frozen}/kv_blocks?kv_details=Table+view")
    expect(page.get_by_text("The same map as a table")).to_be_visible()
    assert "arrow keys" in str(canvas_of(page).get_attribute("aria-label"))


PROBED = ("_stcore/health", "_stcore/host-config")
"""What Streamlit's own script asks for under every part of a deep link, to find out where its server is."""
PATHS = ("", "tour", "live", "kv_blocks", "roofline", "latency", "story", "attach", "sweep", "compare", "prompt", "scheduler")


@pytest.mark.slow
def test_no_page_complains_in_the_console(page: Page, playing: str) -> None:
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("warning", "error") and not any(path in message.location["url"] for path in PROBED):
            said.append(f"{page.url}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    for path in (*PATHS, "failure_modes", "reports"):
        visit(page, f"{playing}/{path}")
        page.wait_for_timeout(2500)
    assert said == []


def test_rows_of_the_batch_never_lie_over_one_another(page: Page, playing: str) -> None:
    visit(page, f"{playing}/live")
    expect(page.locator(".running [data-id]").first).to_be_visible()
    nearest = page.locator(".running .list").evaluate(
        """async (list) => {
            let nearest = Infinity;
            const end = performance.now() + 5000;
            while (performance.now() < end) {
                await new Promise(requestAnimationFrame);
                const rows = [...list.querySelectorAll("[data-id]")].map((row) => row.getBoundingClientRect());
                rows.sort((a, b) => a.top - b.top);
                rows.slice(1).forEach((row, k) => (nearest = Math.min(nearest, row.top - rows[k].bottom)));
            }
            return nearest;
        }"""
    )
    assert nearest > -1.5, f"two rows lie {-nearest:.1f} px over one another"


def test_on_a_phone_the_status_bar_shows_what_binds_in_full(browser: Browser, playing: str) -> None:
    page = another(browser, viewport={"width": 390, "height": 844})
    visit(page, f"{playing}/story")
    for key in ("step", "speed", "kv", "running", "waiting", "bound"):
        cell = page.get_by_label("Engine status").locator(f".value.{key}")
        box = cell.bounding_box()
        assert box is not None, key
        assert box["x"] >= 0, key
        assert box["x"] + box["width"] <= 390, key
        assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth + 1"), f"{key} is cut off"
    bound = page.get_by_label("Engine status").locator(".value.bound")
    write = "(cell, words) => { cell.querySelector('.figure').textContent = words; return cell.scrollWidth - cell.clientWidth; }"
    for words in BoundBy:
        assert bound.evaluate(write, words.value) <= 1, f"{words.value} is cut off"
    page.context.close()


@pytest.mark.slow
def test_a_dot_of_the_roofline_tells_its_step_and_leads_there(page: Page, frozen: str) -> None:
    visit(page, f"{frozen}/roofline")
    chart = page.locator(".st-key-roofline_hero canvas").first
    expect(chart).to_be_visible()
    still(page, chart.screenshot, "the chart")
    box, tip = chart.bounding_box(), page.locator("#vg-tooltip-element.visible")
    assert box is not None
    places = [(x, y) for y in range(60, int(box["height"]) - 100, 7) for x in range(80, int(box["width"]) - 60, 9)]

    def over_a_dot(place: tuple[int, int]) -> bool:
        page.mouse.move(box["x"] + place[0], box["y"] + place[1])
        return tip.count() > 0 and "kind of step" in tip.inner_text()

    at = next((k for k, place in enumerate(places) if over_a_dot(place)), None)
    assert at is not None, "no dot under the pointer, wherever it is"

    def stays(place: tuple[int, int]) -> bool:
        over_a_dot(place)
        page.wait_for_timeout(400)
        return over_a_dot(place)

    # A tooltip may come when the pointer is further already: back to where it stays.
    found = next((place for place in reversed(places[: at + 1]) if stays(place)), None)
    assert found is not None
    number = re.sub(r"\D", "", tip.inner_text().split("kind")[0])
    page.mouse.click(box["x"] + found[0], box["y"] + found[1])
    strip = page.locator(".st-key-step_strip")
    expect(strip.get_by_role("button", name="Go to this step")).to_be_visible()
    assert number in re.sub(r"\D", "", strip.locator(".words").inner_text().split(":")[0])
    first = strip.locator(".chip").first
    request = first.inner_text()
    first.click()
    until(page, lambda: f"request={request}" in page.url, "the request is chosen")
    strip.get_by_role("button", name="Go to this step").click()
    until(page, lambda: "step=" in page.url, "the page looks back")
