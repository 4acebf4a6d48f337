"""The Attach page on real scraper threads and small HTTP servers: what is shown, what is refused, where secrets go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core.attach import watch as watching
from core.attach.forecast import take
from core.attach.prometheus import targets_from_prometheus
from core.attach.scraper import Target
from core.attach.watch import Watch, targets_from_text
from core.config import SchedulerConfig
from core.devices import device_named
from core.errors import ConfigError
from pages.parts import attach_form, attach_prediction, attach_table, engine_access
from tests.attach_cases import steady
from tests.fake_live import FakeLive
from tests.fake_snapshots import starting_snapshot
from tests.live_cases import wait_until
from tests.test_attach_scraper import server

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = f"""
import streamlit as st
from pathlib import Path
st.navigation([st.Page(Path({str(ROOT)!r}) / "pages" / "attach.py", default=True)]).run()
"""


class Metrics:
    """A page whose counters grow with each scrape."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: object) -> tuple[int, str]:
        self.count += 1
        n = self.count
        return 200, (
            f"vllm:num_requests_running 4\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
            f"vllm:generation_tokens_total {40 * n}\nvllm:prompt_tokens_total {10 * n}\n"
            f"vllm:estimated_flops_per_gpu_total {1e9 * n}\nvllm:estimated_read_bytes_per_gpu_total {3e8 * n}\n"
        )


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    made = Watch(period_s=0.25, timeout_s=60.0)
    monkeypatch.setattr(watching, "_watch", [made])
    yield made
    made.close()


@pytest.fixture
def live() -> Iterator[FakeLive]:
    fake = FakeLive()
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def html_of(at: AppTest) -> str:
    return "\n".join(node.proto.body for node in at.get("html"))


def test_an_empty_page_offers_what_fills_it(watch: Watch, live: FakeLive) -> None:
    at = AppTest.from_string(SCRIPT, default_timeout=120).run()
    assert not at.exception
    assert any("Watch this dashboard" in b.label for b in at.button)
    live.picture = starting_snapshot()
    assert not AppTest.from_string(SCRIPT, default_timeout=120).run().exception


def test_live_dead_and_chosen_servers_are_on_the_page(watch: Watch, live: FakeLive) -> None:
    with server(Metrics()) as url:
        watch.add(Target("good <b>", url))
        watch.add(Target("dead", "http://127.0.0.1:9"))
        wait_until(lambda: len(watch.states()[0].intervals) > 2 and watch.states()[1].failures)
        at = AppTest.from_string(SCRIPT, default_timeout=120).run()
        assert not at.exception
        page = html_of(at)
        assert "good &lt;b&gt;" in page
        assert "good <b>" not in page
        assert "unreachable" in page
        assert "1 of 2 answer" in page
        at.session_state["server"] = "good <b>"
        at.session_state["attach_ceilings"] = "H100 SXM"
        at.run()
        assert not at.exception
        assert any("roofline" in str(node.proto).lower() for node in at.get("vega_lite_chart"))
        for tab in ("Replicas", "Findings", "Predicted beside observed", "Configuration"):
            at.session_state["attach_details"] = tab
            at.run()
            assert not at.exception, tab


def test_only_the_controller_changes_the_list(watch: Watch, live: FakeLive) -> None:
    live.control.acquire("somebody else", label="the lecturer")
    at = AppTest.from_string(SCRIPT, default_timeout=120).run()
    own = next(b for b in at.button if b.label == "This dashboard")
    assert own.disabled
    fill = next(b for b in at.button if b.label == "Watch this dashboard")
    fill.click().run()
    assert not watch.states(), "the button of an empty page passes the same gate"
    assert any("the lecturer has control" in e.value for e in at.error)


def test_a_secret_reaches_the_server_and_neither_page_session_nor_log(
    watch: Watch, live: FakeLive, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str | None] = []

    def answer(handler: object) -> tuple[int, str]:
        seen.append(handler.headers.get("Authorization"))  # type: ignore[attr-defined]
        return Metrics()(handler)

    with server(answer) as url:
        at = AppTest.from_string(SCRIPT, default_timeout=120).run()
        at.text_input(key="attach_url").set_value(url + "/metrics?key=hunter2")
        at.text_input(key="attach_name").set_value("mine")
        at.text_input(key="attach_secret").set_value("hunter2")
        next(b for b in at.button if b.label == "Watch it").click().run()
        assert not at.exception
        wait_until(lambda: seen and watch.states()[0].intervals)
        at.session_state["attach_details"] = "Configuration"
        at.run()
    assert seen[0] == "Bearer hunter2"
    assert "hunter2" not in html_of(at)
    assert not any("hunter2" in str(d.value) for d in at.dataframe)
    assert "hunter2" not in repr(watch.states())
    assert at.text_input(key="attach_secret").value == "", "the form has cleared itself"
    assert "hunter2" not in caplog.text


def test_a_wrong_address_is_refused_in_words(watch: Watch, live: FakeLive) -> None:
    at = AppTest.from_string(SCRIPT, default_timeout=120).run()
    at.text_input(key="attach_url").set_value("ftp://somewhere")
    next(b for b in at.button if b.label == "Watch it").click().run()
    assert any("is no address of a server" in e.value.replace("\\", "") for e in at.error)


def test_this_dashboard_is_a_target_like_any_other(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHSCOPE_API_TOKEN", "s3cret")
    own = attach_form.own_target(live.picture)
    assert own.url.startswith("http://127.0.0.1:")
    assert own.url.endswith("/metrics")
    assert own.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(own)


def test_the_table_counts_what_is_not_known_as_unknown() -> None:
    page = attach_table.table_html([steady(5).state("a", seats=8), steady(5).state("b", status="slow")], 8.0)
    assert "4 / 8" in page
    assert page.count("slow") == 2, "as its state and in the hover text"
    assert "1 of 2 answer" in page


# -- Prometheus ----------------------------------------------------------------------------------------------


def prometheus(urls: dict[str, str], serving: list[str]) -> object:
    import json

    def answer(handler: object) -> tuple[int, str]:
        if "/api/v1/query" in handler.path:  # type: ignore[attr-defined]
            rows = [{"metric": {"instance": n, "job": "vllm"}, "value": [0, "1"]} for n in serving]
            return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})
        targets = [{"labels": {"instance": n, "job": "vllm"}, "scrapeUrl": u} for n, u in urls.items()]
        return 200, json.dumps({"status": "success", "data": {"activeTargets": targets}})

    return answer


def test_prometheus_targets_are_those_that_serve_a_model() -> None:
    urls = {"r0": "http://127.0.0.1:1/metrics", "node": "http://127.0.0.1:2/metrics"}
    with server(prometheus(urls, ["r0"])) as url:  # type: ignore[arg-type]
        found = targets_from_prometheus(url)
    assert [(t.name, t.url) for t in found] == [("r0", "http://127.0.0.1:1/metrics")]
    assert "Prometheus at" in found[0].source
    with server(prometheus(urls, [])) as url:  # type: ignore[arg-type]
        assert len(targets_from_prometheus(url)) == 2, "without an answer to the question, all of them"


def test_a_prometheus_server_fills_the_list_in_the_background(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REFRESH_S", 0.2)
    with server(Metrics()) as one:
        urls = {"r0": one + "/metrics", "r1": one + "/metrics"}
        with server(prometheus(urls, ["r0", "r1"])) as url:  # type: ignore[arg-type]
            watch.add_prometheus(url)
            with pytest.raises(ConfigError, match="asked already"):
                watch.add_prometheus(url)
            wait_until(lambda: len(watch.states()) == 2 and all(s.intervals for s in watch.states()))
            assert watch.sources()[0].found == 2
            del urls["r1"]
            wait_until(lambda: [s.name for s in watch.states()] == ["r0"])
            assert watch.forget_prometheus(watch.sources()[0].address)
            assert not watch.states()


def test_a_dead_prometheus_server_says_so(watch: Watch) -> None:
    watch.add_prometheus("http://127.0.0.1:9")
    wait_until(lambda: watch.sources()[0].status == "failed")
    assert "127.0.0.1:9" in watch.sources()[0].message
    with pytest.raises(ConfigError, match="no address"):
        watch.add_prometheus("nonsense")


def test_targets_of_the_environment() -> None:
    found = targets_from_text("a=http://127.0.0.1:1, http://127.0.0.1:2/metrics,")
    assert [(t.name, t.url) for t in found] == [
        ("a", "http://127.0.0.1:1/metrics"),
        ("127.0.0.1:2/metrics", "http://127.0.0.1:2/metrics"),
    ]


def test_a_target_comes_and_goes_without_touching_the_others(watch: Watch) -> None:
    with server(Metrics()) as url:
        watch.add(Target("a", url))
        wait_until(lambda: len(watch.states()[0].intervals) >= 2)
        watch.add(Target("b", url))
        with pytest.raises(ConfigError, match="used twice"):
            watch.add(Target("b", url))
        before = len(watch.states()[0].intervals)
        assert watch.remove("b")
        assert not watch.remove("b")
        wait_until(lambda: len(watch.states()[0].intervals) > before)


def test_seats_show_themselves_when_requests_wait_with_room_in_the_pool(watch: Watch) -> None:
    with server(Metrics()) as url:
        watch.add(Target("a", url))
        wait_until(lambda: watch.states()[0].seats is not None)
        assert (watch.states()[0].seats, watch.states()[0].seats_inferred) == (4, True)
        wait_until(lambda: watch.states()[0].latest.bound_by == "seats")  # type: ignore[union-attr]


def test_what_is_taken_fills_fields_that_the_what_if_form_has() -> None:
    target = Target("a", "http://127.0.0.1:1", device=device_named("H100 SXM"))
    queued = take(steady(40, running=4, waiting=6).state(target=target, seats=4), 78.0)
    values = attach_prediction.form_values(queued)
    assert values["w_max_num_seqs"] == 4
    assert values["w_device"] == "H100 SXM"
    assert values["w_pool"] == 1000
    assert values["w_users"] == 10
    assert values["w_model"] == "SmolLM2 135M"
    form = "".join((ROOT / "pages" / "parts" / f"whatif_{name}.py").read_text() for name in ("form", "load"))
    knobs = {*SchedulerConfig.__dataclass_fields__, "block_size", "num_blocks", "enable_prefix_caching"}
    for key in values:
        name = key.removeprefix("w_")
        assert f'"{key}"' in form or f'"{name}"' in form or name in knobs, f"the form has no field {key}"
