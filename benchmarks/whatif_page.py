"""From a changed number on the What-if page to the drawn answer, in headless chromium, beside the live engine at work.

    python -m benchmarks whatif-page [--users 0] [--fields w_max_num_seqs,...]

The real server under its default load (or a closed loop of --users). Each number field of the form is set to another
value and confirmed with Enter; `first` is the time until verdict or figures have changed and nothing is dimmed, `whole`
until they are those of the whole load. Then the field goes back. Fields that stand only with another device or another
source of requests are measured with that one.

slowest_first_s is the slowest field of all, median_first_s the middle one; slowest_opening_s the slowest of the forms, from its
address to a whole answer. The browser is in a session of its own: where Linux schedules by session (autogroups), a priority
given to this command does not reach it, and a server put above all others starves the very browser that is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import time
from dataclasses import dataclass

from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as TooLate

from benchmarks.dashboard_server import serving, tokens_so_far
from benchmarks.report import print_json_line, print_table

LIMIT_MS = 20_000
OPENING_LIMIT_MS = 60_000
REST_S = 0.5

WATCH = """
key => {
    const answer = () => {
        const verdict = document.querySelector('.bs-verdict');
        const about = verdict && verdict.nextElementSibling;
        const table = document.querySelector('.st-key-whatif_body .bs-paired');
        return [verdict, about, table].map(e => e ? e.textContent : '').join('\\n');
    };
    const before = answer(), seen = {first: null, whole: null, text: ''};
    window.__answer = seen;
    const dimmed = () => {
        const body = document.querySelector('.st-key-whatif_body');
        return !body || Number(getComputedStyle(body).opacity) < 0.9;
    };
    const start = event => {
        if (event.key !== 'Enter') return;
        document.removeEventListener('keydown', start, true);
        const began = performance.now();
        const look = () => {
            const now = answer();
            if ((now !== before || seen.first !== null) && !now.startsWith('Simulating') && !dimmed()) {
                const past = (performance.now() - began) / 1000;
                seen.first = seen.first ?? past;
                if (!now.includes('first answer')) { seen.whole = past; seen.text = now.split('\\n')[0]; return; }
            }
            requestAnimationFrame(look);
        };
        look();
    };
    document.addEventListener('keydown', start, true);
}
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A form in which some fields stand: words, address, and for each field the value it is set to."""

    name: str
    query: str
    fields: dict[str, str]


SCENES = (
    Scene(
        "this machine",
        "",
        {
            "w_max_num_seqs": "6", "w_max_num_batched_tokens": "96", "w_long_prefill_token_threshold": "64",
            "w_watermark": "0.1", "w_lookahead": "3", "w_block_size": "32", "w_num_blocks": "300",
            "w_num_swap_blocks": "64", "w_max_model_len": "1024", "w_requests": "250", "w_slo_ttft": "0.05", "w_slo_itl": "0.02",
            "w_prompt_tokens": "150", "w_output_tokens": "90", "w_users": "20", "w_rate_per_s": "3",
        },
    ),
    Scene(
        "H100 SXM",
        "w_device=H100%20SXM&w_model=Llama%203.1%208B",
        {"w_price": "2", "w_tp": "2", "w_share": "0.5", "w_host_ms": "9", "w_pool": "4096", "w_max_num_seqs": "8"},
    ),
    Scene(
        "a device of one's own",
        "w_device=custom",
        {"w_peak": "120", "w_bandwidth": "700", "w_memory": "24", "w_price": "1.5"},
    ),
    Scene(
        "a mix of tenants",
        "w_source=a%20mix%20of%20tenants",
        {"w_rate": "2", "w_trace_prompt": "1.5", "w_trace_output": "2", "w_requests": "300"},
    ),
    Scene("the latest requests again", "w_source=the%20latest%20requests%20again", {"w_rate": "2", "w_requests": "60"}),
)  # fmt: skip


def settled(page: Page) -> None:
    """Wait until the page shows a whole answer."""
    page.wait_for_function(
        """() => { const v = document.querySelector('.bs-verdict');
        const b = document.querySelector('.st-key-whatif_body');
        return v && b && !v.textContent.startsWith('Simulating') && Number(getComputedStyle(b).opacity) > 0.9
            && !(v.nextElementSibling || v).textContent.includes('first answer'); }""",
        timeout=OPENING_LIMIT_MS,
    )


def opened(page: Page, url: str, scene: Scene) -> float:
    """The page with all groups of the form open, at rest; seconds from its address to a whole answer."""
    began = time.perf_counter()
    page.goto(f"{url}/what_if?{scene.query}")
    settled(page)
    took_s = time.perf_counter() - began
    for group in page.locator("[class*='st-key-w_group_'] summary").all():
        if group.locator("xpath=..").get_attribute("open") is None:
            group.click()
    return took_s


def change(page: Page, key: str, value: str) -> tuple[float | None, float | None, str]:
    """Set a field; seconds to the first and to the whole answer, and the verdict."""
    field = page.locator(f".st-key-{key} input").first
    field.fill(value)
    page.evaluate(WATCH, key)
    field.press("Enter")
    with contextlib.suppress(TooLate):
        page.wait_for_function("() => window.__answer.whole !== null", timeout=LIMIT_MS)
    seen = page.evaluate("() => window.__answer")
    return seen["first"], seen["whole"], seen["text"]


Row = tuple[str, str, float | None, float | None, str]


def measure(page: Page, url: str, scene: Scene, only: set[str]) -> tuple[float | None, list[Row]]:
    """Seconds until the form stood, and each field of it; None and no field where it did not within the limit."""
    fields = {k: v for k, v in scene.fields.items() if not only or k in only}
    if not fields:
        return None, []
    try:
        opened_s = opened(page, url, scene)
    except TooLate:
        shown = page.evaluate("() => document.body.innerText.slice(0, 400)")
        print(f"{scene.name}: no whole answer within {OPENING_LIMIT_MS / 1000:.0f} s; the page says: {shown!r}", flush=True)
        return None, [(scene.name, key, None, None, "the page did not open") for key in fields]
    print(f"{scene.name}: opened in {opened_s:.2f} s", flush=True)
    rows: list[Row] = []
    for key, value in fields.items():
        field = page.locator(f".st-key-{key} input").first
        if not field.count():
            continue
        before = field.input_value()
        time.sleep(REST_S)
        first, whole, verdict = change(page, key, value)
        rows.append((scene.name, key, first, whole, verdict))
        print(f"{scene.name}: {key} {before} -> {value}: {first} {whole} {verdict}", flush=True)
        if before:
            change(page, key, before)
        else:
            opened(page, url, scene)
        settled(page)
    return opened_s, rows


def main(argv: list[str]) -> int:
    """Open each scene, change each field; print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks whatif-page", description=__doc__)
    parser.add_argument("--users", type=int, default=0, help="a closed loop of so many users; 0: the default load")
    parser.add_argument("--fields", default="", help="only these, with commas between")
    parser.add_argument("--warm", type=float, default=25.0, help="seconds of load before the first look")
    parser.add_argument("--url", default="", help="a server that runs already")
    args = parser.parse_args(argv)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not on the path")
    environment = {"BATCHSCOPE_USERS": str(args.users)} if args.users else {}
    rows: list[Row] = []
    openings: list[float | None] = []
    server = contextlib.nullcontext((args.url, None)) if args.url else serving("app:app", environment)
    with server as (url, _), sync_playwright() as playwright:
        while tokens_so_far(url) == 0:
            time.sleep(0.5)
        time.sleep(args.warm)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for scene in SCENES:
            opened_s, found = measure(page, url, scene, {f for f in args.fields.split(",") if f})
            rows += found
            openings += [opened_s] if found else []
        browser.close()
    print_table(["form", "field", "first answer, s", "whole load, s", "verdict"], rows)
    firsts = [first for _, _, first, _, _ in rows if first is not None]
    print_json_line(
        {
            "benchmark": "whatif_page",
            "fields": len(rows),
            "unanswered": len(rows) - len(firsts),
            "slowest_opening_s": max((s for s in openings if s is not None), default=None),
            "slowest_first_s": max(firsts, default=None),
            "median_first_s": statistics.median(firsts) if firsts else None,
            "over_1_s": sorted(f"{name}: {key}" for name, key, first, _, _ in rows if first is None or first > 1.0),
            "users": args.users,
        }
    )
    return 0
