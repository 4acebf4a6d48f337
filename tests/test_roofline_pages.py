"""The KV blocks and Roofline pages run by Streamlit's own test runtime, on scenery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.parts import engine_access, step_strip
from tests.fake_live import FakeLive
from tests.fake_snapshots import busy_run, idle_snapshot, starting_snapshot

PAGES = Path(__file__).resolve().parents[1] / "pages"
LIMIT_S = 120


@pytest.fixture
def live() -> Iterator[FakeLive]:
    fake = FakeLive(busy_run(200))
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def opened(page: str, **state: object) -> AppTest:
    app = AppTest.from_file(str(PAGES / f"{page}.py"), default_timeout=LIMIT_S)
    for key, value in state.items():
        app.session_state[key] = value
    return app.run()


def words(app: AppTest) -> str:
    """All that the page says in HTML and text elements."""
    return "\n".join([*_htmls(app), *(t.value for t in app.text)])


def _htmls(app: AppTest) -> list[str]:
    found: list[str] = []

    def walk(node: object) -> None:
        if getattr(node, "type", "") == "html":
            found.append(node.proto.body)  # type: ignore[attr-defined]
        for child in getattr(node, "children", {}).values():
            walk(child)

    walk(app.main)
    return found


@pytest.mark.parametrize("page", ["kv_blocks", "roofline"])
@pytest.mark.parametrize("scene", ["busy", "starting", "idle"])
def test_pages_draw_every_scene_without_an_error(live: FakeLive, page: str, scene: str) -> None:
    if scene == "starting":
        live.picture = starting_snapshot()
        live.run.records.clear()
    elif scene == "idle":
        live.picture = idle_snapshot()
        live.run.records.clear()
    app = opened(page)
    assert not app.exception


@pytest.mark.parametrize("tab", ["Pool over steps", "Contiguous alternative", "Ages and lifetimes", "Table view"])
def test_every_tab_of_the_block_page_draws(live: FakeLive, tab: str) -> None:
    app = opened("kv_blocks", kv_details=tab)
    assert not app.exception
    said = words(app)
    expected = {
        "Pool over steps": "How full is the pool?",
        "Contiguous alternative": "max_model_len",
        "Ages and lifetimes": "How long ago was each block used?",
        "Table view": "The same map as a table",
    }
    assert expected[tab] in said
    assert all(text not in said for name, text in expected.items() if name != tab)


@pytest.mark.parametrize("tab", ["Intensity and batch", "Bytes by step", "Host time", "Intensity by batch size"])
def test_every_tab_of_the_roofline_draws(live: FakeLive, tab: str) -> None:
    app = opened("roofline", roofline_details=tab)
    assert not app.exception


def test_the_table_holds_every_block_that_is_not_free_and_stands_still(live: FakeLive) -> None:
    app = opened("kv_blocks", kv_details="Table view")
    pool = live.picture.pool
    first = app.dataframe[0].value
    assert len(first) == pool.live + pool.cached
    live.run.advance(30)
    live.picture = live.run.snapshot()
    app.run()
    assert app.dataframe[0].value.equals(first)
    app.button(key="kv_still").click().run()
    assert not app.dataframe[0].value.equals(first)


def test_figures_of_the_pool_are_those_of_the_snapshot(live: FakeLive) -> None:
    said = words(opened("kv_blocks"))
    pool = live.picture.pool
    for value in (pool.live, pool.cached, pool.free):
        assert f">{value}<" in said


def test_before_the_probe_the_roofline_says_so(live: FakeLive) -> None:
    live.picture = replace(live.picture, ceilings=None)
    app = opened("roofline")
    assert not app.exception
    assert "not measured yet" in words(app)
    app.button(key="fill_ceilings").click().run()
    assert not app.exception
    assert "H100 SXM · predicted" in words(app)


def test_published_ceilings_need_no_probe(live: FakeLive) -> None:
    live.picture = replace(live.picture, ceilings=None)
    app = opened("roofline", ceilings="H100 SXM")
    assert not app.exception
    said = words(app)
    assert "H100 SXM · predicted" in said
    assert "not measured yet" not in said


def test_a_chosen_request_that_has_ended_stays_chosen(live: FakeLive) -> None:
    over = live.picture.ended[0].request_id
    app = opened("kv_blocks", request=over)
    assert not app.exception
    assert app.selectbox(key="request").value == over


def test_launches_are_shown_where_steps_have_captured_shapes(live: FakeLive) -> None:
    assert "Graph replays" not in words(opened("roofline"))
    live.picture = replace(live.picture, totals=replace(live.picture.totals, graph_replays=93, graph_misses=7, graph_captures=5))
    text = words(opened("roofline"))
    assert "Graph replays" in text
    assert "5 shapes captured, 7 misses" in text


def test_nothing_picked_invites_and_a_picked_step_tells_its_requests(live: FakeLive) -> None:
    shot, history = live.picture, live.run.history()
    assert step_strip.payload(shot, history, None) == {
        "step": None,
        "words": step_strip.INVITATION,
        "requests": [],
        "chosen": None,
    }
    newest = history[-1]
    told = step_strip.payload(shot, history, newest.step)
    named = {request for request, _ in told["requests"]}
    assert told["step"] == newest.step
    assert named == {row.request_id for row in step_strip.members(shot, newest)}
    assert named <= {row.request_id for row in (*shot.running, *shot.preempted, *shot.ended)}
    assert len(named) > 5
    assert newest.kind in told["words"]
    assert newest.bound_by in told["words"]


def test_a_step_that_has_left_the_figure_says_so(live: FakeLive) -> None:
    told = step_strip.payload(live.picture, live.run.history()[-20:], live.run.history()[0].step)
    assert told["step"] is None
    assert "any more" in told["words"]


def test_going_to_a_step_takes_the_first_kept_picture_that_has_it(live: FakeLive) -> None:
    shot = live.picture
    kept = [replace(shot, step=step) for step in (10, 20, 30)]
    assert [step_strip.picture_with(kept, step) for step in (5, 10, 11, 30, 31)] == [10, 10, 20, 30, 31]
