"""Figures for print, the report as HTML and PDF, the trace for Perfetto: structure and values, from one small run."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pypdf import PdfReader
from rich.console import Console

from core.bundle import RunBundle, write_bundle
from core.charts import batch_timeline, kv, style
from core.devices import DEVICES
from core.errors import ExportError
from core.load_spec import LoadSpec
from core.models_catalog import model_named
from core.perfetto_trace import PARTS, stories_of, trace, trace_bytes
from core.replay_view import ReplayView
from core.report.__main__ import main
from core.report.caption import Caption, RunFacts, facts_of_bundle, facts_of_what_if
from core.report.export import Exporter
from core.report.figures import FigureSet
from core.report.file_kinds import FORMATS, file_name
from core.report.html import report_html
from core.report.pdf import report_pdf
from core.report.print_spec import MIN_TEXT_PX, print_spec, repainted
from core.report.render import data_file, joined, picture, svg_text
from core.report.sections import Section, Table, report_sections
from core.report.text import width, wrap
from core.run_summary import summarise
from core.version import VERSION
from core.whatif import WhatIf
from tests.bundle_cases import simulated_bundle


@pytest.fixture(scope="module")
def bundle() -> RunBundle:
    made = simulated_bundle()
    info = replace(made.record.header.info, device="H100 SXM")
    return replace(made, record=replace(made.record, header=replace(made.record.header, info=info)))


@pytest.fixture(scope="module")
def exporter(bundle: RunBundle) -> Exporter:
    return Exporter(bundle)


FACTS = RunFacts("SmolLM2-135M", "bfloat16", "CPU, 2 threads", "Poisson 4 req/s", 7, "measured", "1.2.3")


def composition(bundle: RunBundle, theme: style.Theme = style.PRINT, **more: Any) -> dict[str, Any]:
    frame = batch_timeline.composition_frame(bundle.steps)
    caption = Caption("What was each step made of?", "steps 1 to 72", FACTS)
    return print_spec(batch_timeline.composition_spec(theme), frame, caption, theme=theme, **more)


# -- one figure ------------------------------------------------------------------------------------------------


def test_the_caption_says_what_ran_where_and_how() -> None:
    text = Caption("t", "steps 1 to 9", FACTS).text()
    assert text == "steps 1 to 9, measured. SmolLM2-135M, bfloat16, CPU, 2 threads; Poisson 4 req/s; seed 7; batchscope 1.2.3"
    assert Caption("t", "step 3 · replayed", FACTS).text().startswith("step 3, replayed. ")
    told = replace(FACTS, load="burst of 20; seed 7")
    assert "; burst of 20; seed 7; batchscope" in told.line(), "the same seed is said once"
    assert "; seed 7; engine seed 3; batchscope" in replace(told, seed=3).line(), "two seeds are told apart"


def test_the_caption_of_a_prediction_names_what_was_predicted() -> None:
    small = WhatIf(model_named("SmolLM2 135M"), DEVICES["L4"], load=LoadSpec(seed=5))
    large = replace(small, device=DEVICES["H100 SXM"])
    told = facts_of_what_if(large, small)
    assert told.line().startswith("SmolLM2 135M, bfloat16, L4 → H100 SXM; ")
    assert told.line().count("seed 5") == 1
    assert told.kind == "predicted"
    assert (
        facts_of_what_if(replace(large, load=None), load="a trace").line()
        == f"SmolLM2 135M, bfloat16, H100 SXM; a trace; batchscope {VERSION}"
    )
    assert RunFacts("", "", "", "", None, "measured", "1").line() == "batchscope 1", "what is not known is not made up"


def test_a_figure_alone_on_paper_says_how_it_is_read(bundle: RunBundle) -> None:
    caption = Caption("What was each step made of?", "steps 1 to 72", FACTS, "A dot is a step.")
    spec = print_spec(batch_timeline.composition_spec(style.PRINT), batch_timeline.composition_frame(bundle.steps), caption)
    assert spec["title"]["subtitle"][0] == "A dot is a step."
    assert "A dot is a step." in svg_text(spec)


def test_a_table_that_goes_over_a_page_has_its_heads_on_both() -> None:
    table = Table(("figure", "predicted"), tuple((f"row {k}", str(k)) for k in range(80)))
    pages = [p.extract_text() for p in PdfReader(io.BytesIO(report_pdf("t", (Section("Long", (table,)),), FACTS))).pages]
    assert len(pages) == 2
    assert all("predicted" in page for page in pages)


def test_pictures_have_the_size_of_a_column_on_paper(bundle: RunBundle) -> None:
    spec = composition(bundle)
    for times, fmt in ((1, "png"), (2, "png@2x"), (3, "png@3x")):
        image = Image.open(io.BytesIO(picture(spec, fmt)))
        assert image.width == 321 * times
        assert image.width / image.info["dpi"][0] * 2.54 == pytest.approx(8.5, abs=0.02)
    page = PdfReader(io.BytesIO(picture(spec, "pdf"))).pages[0]
    assert float(page.mediabox.width) / 72 * 2.54 == pytest.approx(8.5, abs=0.02)
    fonts = [f.get_object() for f in page["/Resources"]["/Font"].values()]
    assert {f["/BaseFont"].split("+")[1] for f in fonts} == {"FigureSans-Regular", "FigureSans-Bold"}
    assert all("/FontFile2" in f["/DescendantFonts"][0].get_object()["/FontDescriptor"].get_object() for f in fonts)
    words = re.sub(r"\s+", " ", page.extract_text())
    for part in (
        "What was each step made of?",
        "measured",
        "SmolLM2-135M",
        "bfloat16",
        "2 threads",
        "seed 7",
        "batchscope 1.2.3",
    ):
        assert part in words


def test_an_svg_carries_its_fonts_and_no_text_is_too_small(bundle: RunBundle) -> None:
    svg = picture(composition(bundle, width_cm=17.8), "svg").decode()
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["width"]) == pytest.approx(17.8 / 2.54 * 96, abs=1)
    assert svg.count("font/woff2;base64,") == 2
    sizes = [float(t.attrib["font-size"].removesuffix("px")) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(sizes) > 10
    assert min(sizes) >= MIN_TEXT_PX - 0.01  # 7 pt
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", svg)


@pytest.mark.parametrize("theme", [style.DARK, style.LIGHT])
def test_a_figure_of_the_screen_is_repainted_for_paper(bundle: RunBundle, theme: style.Theme) -> None:
    on_paper = json.dumps(composition(bundle, theme))
    for tone in ("#DCE1E7" if theme is style.LIGHT else style.DARK.grid, style.DECODE_ON_DARK):
        assert (tone in on_paper) == (tone == "#DCE1E7")
    assert style.DECODE in on_paper
    assert '"zoom"' not in on_paper
    assert repainted({"fontSize": 6, "params": [1]}, {}) == {"fontSize": MIN_TEXT_PX}


def test_data_of_a_figure_read_back_equal() -> None:
    frame = pd.DataFrame({"step": [1, 2], "share": [0.25, None], "kind": pd.Categorical(["a", "b"])})
    assert data_file(frame, "csv").decode() == '"step","share","kind"\n1,0.25,"a"\n2,,"b"\n'
    assert pq.read_table(io.BytesIO(data_file(frame, "parquet"))).to_pydict()["share"] == [0.25, None]
    assert data_file(pa.table({"x": [1]}), "csv") == b'"x"\n1\n'
    both = joined({"a": frame[["step"]], "b": pa.table({"y": [3]})})
    assert both["set"].tolist() == ["a", "a", "b"]


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ExportError, match="there is no format 'gif'"):
        picture({"mark": "point", "data": {"values": []}}, "gif")
    with pytest.raises(ExportError, match="cannot be drawn"):
        picture({"mark": 5}, "svg")


def test_lines_are_broken_by_the_width_of_the_font() -> None:
    text = "the quick brown fox jumps over " + "w" * 90
    lines = wrap(text, 9.0, 120.0)
    assert all(width(line, 9.0) <= 120.0 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert width("WWW", 10) > width("iii", 10)
    assert wrap("", 9.0, 50.0) == [""]


# -- all figures of a run --------------------------------------------------------------------------------------


def test_every_figure_of_a_run_is_drawn_with_its_data(exporter: Exporter) -> None:
    figures = exporter.figures()
    for name in figures.names:
        figure = figures.get(name)
        assert figure is not None, (name, figures.missing)
        svg = exporter.figure_file(figure, "svg").decode()
        assert svg.count("<path") + svg.count("<rect") > 10, name
        assert any(kind in figure.span for kind in style.KINDS), name
        assert pq.read_table(io.BytesIO(exporter.figure_file(figure, "parquet"))).num_rows > 0
    assert figures.missing == {}


def test_the_data_of_the_figures_are_those_of_the_run(bundle: RunBundle, exporter: Exporter) -> None:
    def table(name: str) -> dict[str, list[Any]]:
        figure = exporter.figures().get(name)
        assert figure is not None
        return pq.read_table(io.BytesIO(exporter.figure_file(figure, "parquet"))).to_pydict()

    assert table("composition")["decode"] == [r.decode_tokens for r in bundle.steps]
    assert table("pool")["live"] == [r.blocks_live for r in bundle.steps]
    for number, step in enumerate(exporter.figures().map_steps(), 1):
        states = table(f"blocks_{number}")["state"]
        record = next(r for r in bundle.steps if r.step == step)
        assert (states.count("live"), states.count("cached")) == (record.blocks_live, record.blocks_cached)
    latency = table("latency")
    ttft = sorted(r.ttft_s for r in bundle.requests if r.ttft_s is not None)
    curve = [s for s, n in zip(latency["seconds"], latency["latency"], strict=True) if n == "TTFT"]
    assert curve == pytest.approx(ttft)


def test_a_run_without_what_a_figure_needs_says_why(bundle: RunBundle) -> None:
    empty = replace(bundle, steps=(), requests=())
    figures = FigureSet(empty, ReplayView.of(empty), style.PRINT)
    assert [f.name for f in figures.all()] == ["seats", "marginal"]
    assert figures.missing["composition"] == "the run has no steps"
    assert figures.missing["latency"] == "no request of the run ended"
    unknown = replace(bundle.record.header, info=replace(bundle.record.header.info, device="nobody's chip"))
    figures = FigureSet(replace(bundle, record=replace(bundle.record, header=unknown)), ReplayView.of(bundle), style.PRINT)
    assert figures.get("roofline") is None
    assert "nobody's chip" in figures.missing["roofline"]
    with pytest.raises(KeyError):
        figures.get("no such figure")


# -- the report ------------------------------------------------------------------------------------------------


def tables(sections: Any, title: str) -> list[Table]:
    section = next(s for s in sections if s.title.startswith(title))
    return [p for p in section.parts if isinstance(p, Table)]


def test_the_report_says_what_the_run_was(bundle: RunBundle, exporter: Exporter) -> None:
    sections = report_sections(exporter.figures(style.LIGHT))
    titles = [s.title for s in sections]
    assert titles[0] == "Summary"
    assert {"Configuration", "Machine", "Memory", "Latency", "Fixed against continuous"} < set(titles)
    s = summarise(bundle.steps, bundle.requests)
    summary = dict(tables(sections, "Summary")[0].rows)
    assert summary["preemptions"] == str(s.preemptions) == "2"
    knobs = {row[0]: row[1:] for row in tables(sections, "Configuration")[1].rows}
    assert knobs["max_num_seqs"] == ("12", "default 32")
    assert knobs["queue_policy"] == ("fcfs", "")
    assert {row[0] for row in tables(sections, "Latency")[0].rows} == {"all", "t0", "t1"}
    compared = {row[0]: row[1:] for row in tables(sections, "Fixed")[0].rows}
    fixed, continuous = (float(v) for v in compared["mean batch"])
    assert continuous > fixed > 0
    assert len(tables(sections, "What the detectors")[0].rows) == 10
    prediction = next(s for s in sections if s.title.startswith("What was predicted"))
    assert "itself a prediction" in str(prediction.parts[0])


def test_a_partial_run_says_so_first(bundle: RunBundle) -> None:
    partial = replace(bundle, manifest=replace(bundle.manifest, complete=False, note="stopped by the user after 72 steps"))
    figures = FigureSet(partial, ReplayView.of(partial), style.LIGHT)
    assert report_sections(figures)[0].parts[0] == "This run is partial: stopped by the user after 72 steps."


def test_the_html_report_is_complete_in_itself(bundle: RunBundle, exporter: Exporter) -> None:
    hostile = replace(bundle, manifest=replace(bundle.manifest, name="</script><script>alert(1)</script>"))
    sections = report_sections(exporter.figures(style.LIGHT))
    text = report_html(hostile.manifest.name, sections, facts_of_bundle(hostile))
    assert "<script>alert(1)" not in text
    assert "default-src 'none'" in text
    found = dict(re.findall(r'<script type="application/json" id="spec-(\w+)">(.*?)</script>', text, re.DOTALL))
    assert set(found) == set(exporter.figures().names)
    spec = json.loads(found["pool"].replace("<\\/", "</"))
    assert [row["live"] for row in spec["data"]["values"]] == [r.blocks_live for r in bundle.steps]
    assert spec["layer"][0]["params"]  # still zooms
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', outside)
    assert "vegaEmbed" in text
    assert text.count("@font-face") == 2


def test_the_command_writes_what_it_lists_and_the_pdf_has_pages_text_and_fonts(bundle: RunBundle, tmp_path: Path) -> None:
    path = write_bundle(bundle, tmp_path / "a.bundle.zip")
    out = io.StringIO()
    options = ["--figures", "sets", "--formats", "svg,csv", "--out", str(tmp_path / "new")]
    assert main([str(path), *options], Console(file=out, width=200)) == 0
    names = {"a.report.html", "a.report.pdf", "a.trace.json", "a.figures/sets.svg", "a.figures/sets.csv"}
    written = {str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*") if p.is_file()}
    assert written == names
    assert set(out.getvalue().split()) == {str(tmp_path / "new" / n) for n in names}
    assert [file_name("sets", f) for f in FORMATS[:3]] == ["sets.png", "sets@2x.png", "sets@3x.png"]

    reader = PdfReader(tmp_path / "new" / "a.report.pdf")
    words = re.sub(r"\s+", " ", " ".join(page.extract_text() for page in reader.pages))
    assert len(reader.pages) >= 6
    assert {round(float(p.mediabox.width)) for p in reader.pages} == {595}
    for part in (
        "Summary",
        "max_num_batched_tokens",
        "Which blocks were held",
        "preemption thrash",
        "predicted",
        "core.run --bundle",
    ):
        assert part in words, part
    assert reader.metadata is not None
    assert reader.metadata.title == "small"


def test_errors_of_the_command_are_one_line(bundle: RunBundle, tmp_path: Path) -> None:
    path = write_bundle(bundle, tmp_path / "a.bundle.zip")
    for arguments, words in (
        ([str(tmp_path / "none.zip")], "there is no file"),
        ([str(path), "--figures", "nonsense", "--no-report"], "there is no figure 'nonsense'"),
        ([str(path), "--no-report", "--figures", "sets", "--out", str(path)], "is a file and no folder"),
    ):
        out = io.StringIO()
        assert main(arguments, Console(file=out, width=200)) == 2
        assert words in out.getvalue()
    path.write_bytes(path.read_bytes()[:-400])
    out = io.StringIO()
    assert main([str(path)], Console(file=out, width=200)) == 2
    assert "damaged" in out.getvalue()


# -- the trace -------------------------------------------------------------------------------------------------

REQUIRED = {"X": {"pid", "tid", "name", "ts", "dur"}, "C": {"pid", "name", "ts", "args"}, "i": {"pid", "tid", "name", "ts", "s"},
            "M": {"pid", "tid", "name", "args"}}  # fmt: skip
"""The Trace Event Format: keys that each kind of event must have (complete, counter, instant, metadata)."""


def check_structure(content: dict[str, Any]) -> None:
    """What the format asks for, and that the slices of a track nest, to readers of floats and of whole nanoseconds."""
    tracks: dict[tuple[int, int, bool], list[tuple[float, float]]] = {}
    for event in content["traceEvents"]:
        assert set(event) >= REQUIRED[event["ph"]], event
        if event["ph"] == "C":
            assert all(isinstance(v, (int, float)) for v in event["args"].values())
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            at, spent = event["ts"], event["dur"]
            track = (event["pid"], event["tid"])
            tracks.setdefault((*track, False), []).append((at, at + spent))
            tracks.setdefault((*track, True), []).append((int(at * 1000), int(at * 1000) + int(spent * 1000)))
    for slices in tracks.values():
        stack: list[tuple[float, float]] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1][1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1][1], (start, end, stack[-1])
            stack.append((start, end))


def test_the_trace_follows_the_format_and_tells_the_run(bundle: RunBundle) -> None:
    content = json.loads(trace_bytes(bundle))
    check_structure(content)
    events = content["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    assert [e["name"] for e in steps] == [f"step {r.step}" for r in bundle.steps]
    assert [e["dur"] for e in steps] == pytest.approx([1e6 * r.duration_s for r in bundle.steps], abs=0.13)
    forward = [e["dur"] for e in events if e["name"] == "forward"]
    assert sum(forward) == pytest.approx(sum(1e6 * r.forward_s for r in bundle.steps), rel=1e-3)
    assert {e["name"] for e in events if e["ph"] == "X" and e["pid"] == 1 and not e["name"].startswith("step ")} <= set(PARTS)
    counters = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert [c["live"] for c in counters] == [r.blocks_live for r in bundle.steps]
    tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert sorted(tracks) == sorted(r.request_id for r in bundle.requests)
    assert sum(e["ph"] == "i" for e in events) == sum(r.output_tokens for r in bundle.requests)
    assert content["otherData"]["kind"] == "predicted"


def test_stories_of_a_record_are_those_of_the_engine(bundle: RunBundle) -> None:
    view = ReplayView.of(bundle)
    view.seek(view.last_step)
    kinds = {"submitted", "admitted", "first_token", "preempted", "resumed", "finished"}
    for story in stories_of(bundle):
        engine = view.story(story.request_id)
        assert engine is not None
        assert story.token_times_s == engine.token_times_s
        told = [(e.kind, e.time_s) for e in engine.events if e.kind in kinds]
        assert sorted((e.kind, e.time_s) for e in story.events) == sorted(told)


def test_a_trace_of_a_run_that_was_stopped_ends_with_its_last_step(bundle: RunBundle) -> None:
    entries = bundle.record.entries[: len(bundle.record.entries) // 2]
    steps = tuple(r for r in bundle.steps if r.step <= max(getattr(e, "output", r).step for e in entries))
    half = replace(bundle, record=replace(bundle.record, entries=entries), steps=steps, requests=())
    content = trace(half)
    check_structure(content)
    last_us = 1e6 * (steps[-1].start_s + steps[-1].duration_s)
    ends = [e["ts"] + e["dur"] for e in content["traceEvents"] if e["ph"] == "X" and e["pid"] == 2]
    assert max(ends) == pytest.approx(last_us, abs=0.0626), "to an eighth of a microsecond"


def test_the_pool_figure_keeps_its_marks_of_preemptions(bundle: RunBundle) -> None:
    spec = print_spec(kv.pool_spec(style.PRINT), kv.pool_frame(bundle.steps), Caption("t", "s", FACTS))
    svg = picture(spec, "svg").decode()
    marks = re.findall(rf'd="([^"]*)" fill="{style.PREEMPTED}"', svg)
    drawn = [m for m in marks if m != "M0,0L0,0L0,0Z"]  # one of no size stands at the edge for the axis
    assert len(drawn) == sum(r.preempted > 0 for r in bundle.steps) > 0
