"""Scraping real HTTP servers on the loopback: live, dead, slow, wrong, restarted; secrets stay inside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from core.attach.prometheus import targets_from_prometheus
from core.attach.scraper import Scraper, Target, TargetState, public_url
from core.errors import ConfigError
from tests.live_cases import PATIENCE_S

PAGE = "vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n"


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self)
            body = text.encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                return  # the scraper gave up waiting, which is what some tests want

        def log_message(self, *_: object) -> None:
            return None

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join(5)


def wait_for(
    scraper: Scraper, wanted: Callable[[tuple[TargetState, ...]], bool], limit_s: float = PATIENCE_S
) -> tuple[TargetState, ...]:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        states = scraper.states()
        if wanted(states):
            return states
        time.sleep(0.02)
    raise AssertionError(f"not seen within {limit_s} s: {scraper.states()}")


def test_a_live_server_gives_intervals_and_a_dead_one_delays_nobody() -> None:
    tokens = iter(range(0, 100_000, 10))
    with server(lambda _: (200, PAGE.format(running=4, tokens=next(tokens)))) as url:
        scraper = Scraper([Target("a", url), Target("dead", "http://127.0.0.1:9/metrics")], period_s=0.25, timeout_s=60.0)
        try:
            live, dead = wait_for(scraper, lambda s: len(s[0].intervals) >= 3 and s[1].failures > 0)
        finally:
            scraper.close()
    assert live.status == "live"
    assert live.address.endswith("/metrics")
    assert live.intervals[-1].running == 4
    assert all(i.output_tokens_per_s == pytest.approx(10 / i.span_s) for i in live.intervals)
    assert max(i.span_s for i in live.intervals) >= 0.2, "a quarter of a second apart, a late one followed by one in time"
    assert dead.status == "unreachable"
    assert "127.0.0.1:9" in dead.message


def test_a_slow_server_is_called_slow() -> None:
    def late(_: BaseHTTPRequestHandler) -> tuple[int, str]:
        time.sleep(0.8)
        return 200, PAGE.format(running=0, tokens=0)

    with server(late) as url:
        scraper = Scraper([Target("slow", url)], period_s=0.25, timeout_s=0.2)
        try:
            (state,) = wait_for(scraper, lambda s: s[0].failures > 0)
        finally:
            scraper.close()
    assert state.status == "slow"


def test_a_wrong_page_and_a_refusal_say_what_was_found() -> None:
    with server(lambda h: (200, "<html>hello</html>") if "page" in h.path else (403, "no")) as url:
        scraper = Scraper([Target("page", url + "/page"), Target("denied", url + "/denied")], period_s=0.25, timeout_s=60.0)
        try:
            page, denied = wait_for(scraper, lambda s: all(x.failures for x in s))
        finally:
            scraper.close()
    assert page.status == "wrong page"
    assert "403" in denied.message


def test_a_restart_is_seen_and_nothing_is_negative() -> None:
    counts = iter([500, 600, 5, 15, 25, *range(35, 10_000, 10)])
    with server(lambda _: (200, PAGE.format(running=1, tokens=next(counts)))) as url:
        scraper = Scraper([Target("a", url)], period_s=0.25, timeout_s=60.0)
        try:
            (state,) = wait_for(scraper, lambda s: len(s[0].intervals) >= 4)
        finally:
            scraper.close()
    assert [i.restarted for i in state.intervals[:3]] == [False, True, False]
    assert all((i.output_tokens_per_s or 0) >= 0 for i in state.intervals)


def test_the_secret_reaches_the_server_and_nothing_else() -> None:
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> tuple[int, str]:
        seen.append(handler.headers.get("Authorization"))
        return 401, "no"

    with server(answer) as url:
        target = Target(
            "a", url.replace("http://", "http://user:hunter2@") + "/metrics?key=hunter2", {"Authorization": "Bearer hunter2"}
        )
        scraper = Scraper([target], period_s=0.25, timeout_s=60.0)
        try:
            (state,) = wait_for(scraper, lambda s: s[0].failures > 0)
        finally:
            scraper.close()
    assert seen[0] is not None
    assert "hunter2" not in repr(state)
    assert "hunter2" not in public_url(target.url)


def test_bad_targets_are_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError, match="http://host:port/metrics"):
        Target("a", "ftp://example")
    with pytest.raises(ConfigError, match="needs a name"):
        Target("", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="used twice"):
        Scraper([Target("a", "http://127.0.0.1:1"), Target("a", "http://127.0.0.1:2")])


def test_targets_from_a_prometheus_server() -> None:
    body = '{"status":"success","data":{"activeTargets":[{"labels":{"instance":"r0"},"scrapeUrl":"http://127.0.0.1:1/metrics"}]}}'
    with server(lambda _: (200, body)) as url:
        (target,) = targets_from_prometheus(url)
    assert (target.name, target.url) == ("r0", "http://127.0.0.1:1/metrics")
    with server(lambda _: (200, "{}")) as url, pytest.raises(ConfigError, match="is it a Prometheus server"):
        targets_from_prometheus(url)
