"""Reports: what one takes away from a run (bundle, report, trace, figures), and runs of others, opened as replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from core.bundle import SUFFIX
from core.charts import formats
from core.errors import BatchscopeError
from core.records import StepRecord
from core.repeat import repeat
from core.replay_view import ReplayView
from core.report.job import PARTS, ExportJob
from core.run_summary import summarise
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, replay, ticker
from pages.parts.facts import facts

HERE = Path(__file__).resolve().parent
JOB = "export_job"
UPLOAD_MB = 100
PROBLEM = "reports_problem"
VERDICT = "reports_verdict"
FILES_SEEN = "reports_files_seen"
ASKED = {
    SUFFIX: ("Run bundle", "zip: config, seed, arrivals, every step and request, events, machine", "application/zip"),
    ".trace.json": ("Trace", "opens in ui.perfetto.dev or chrome://tracing", "application/json"),
    ".report.html": ("Report, HTML", "one file, figures stay interactive, needs no network", "text/html"),
    ".report.pdf": ("Report, PDF", "A4, figures as vectors, fonts inside", "application/pdf"),
    ".figures.zip": ("All figures", "PNG at 1x, 2x, 3x, SVG, PDF, with their data as CSV and Parquet", "application/zip"),
}


def _job() -> ExportJob | None:
    job: ExportJob | None = st.session_state.get(JOB)
    return job


def _make() -> None:
    before = _job()
    if before is not None:
        before.cancel()
    view = engine_access.replay()
    stem = view.name if view is not None else "batchscope"
    job = ExportJob(
        engine_access.engine().bundle_source(), "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "run"
    )
    st.session_state[JOB] = job
    st.session_state.pop(VERDICT, None)
    job.start()


def _figures(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    view = engine_access.replay()
    s = summarise(history, engine_access.engine().requests())
    span = formats.step_range(history[0].step, history[-1].step) if history else "no steps yet"
    facts(
        (
            ("Run", view.name if view is not None else "this dashboard", frame.kind_of(snapshot)),
            ("Steps", formats.count(snapshot.step), span),
            ("Requests ended", formats.count(s.requests), f"{formats.count(s.preemptions)} preemptions"),
            ("Output tokens/s", formats.figures(s.output_tokens_per_s), "over the steps kept"),
            ("TTFT p50", formats.seconds(s.ttft_p50_s), f"p99 {formats.seconds(s.ttft_p99_s)}"),
            ("Seed", formats.count(snapshot.config.seed), snapshot.load_label or "no load"),
        ),
        width=170,
    )


def _take(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """The export of the run that is shown."""
    frame.figure_head(
        "Take this run with you",
        frame.span_of(history),
        how="One click makes all five files, in a process of its own; each can be saved as soon as it is there.",
    )
    _figures(snapshot, history)
    job = _job()
    running = job is not None and job.is_running
    with st.container(horizontal=True, vertical_alignment="center", key="reports_make"):
        st.button(
            "Make bundle and report" if job is None else "Make them again",
            type="primary", icon=":material/inventory_2:", on_click=_make, key="make_report", disabled=running or not history,
        )  # fmt: skip
        if running and job is not None:
            st.caption(f"{len(job.files())} of {len(PARTS)} files are there; the engine runs on meanwhile.")
        elif job is not None and not job.error:
            st.caption("All files are there.")
        elif not history:
            st.caption("No step has run yet; there is nothing to take.")
    with st.container(key="reports_problem"):
        if job is not None and job.error:
            st.error(frame.plain(job.error), icon=":material/error:")


def _files() -> None:
    """The files to save. They do not tick: with each drawing of a button the server forgets the one before it, so a press
    on a button that is drawn anew all the time may be lost."""
    job = _job()
    ready = job.files() if job is not None else {}
    with st.container(key="reports_files"):
        for part, (label, about, mime) in ASKED.items():
            with st.container(horizontal=True, vertical_alignment="center", key=f"file_{part.strip('.').replace('.', '_')}"):
                path = ready.get(part)
                size = formats.decimal_bytes(path.stat().st_size) if path is not None else ""
                st.download_button(
                    label,
                    path.read_bytes if path is not None else b"",
                    path.name if path is not None else "none",
                    mime, icon=":material/download:", key=f"get{part}", on_click="ignore", disabled=path is None, width=170,
                )  # fmt: skip
                st.caption(frame.plain(f"{about}{' · ' + size if size else ''}"))


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """What follows the run; files and opening a bundle are drawn after it and do not tick."""
    job = _job()
    there = tuple(job.files()) if job is not None else ()
    if st.session_state.setdefault(FILES_SEEN, there) != there:
        st.session_state[FILES_SEEN] = there
        st.rerun()  # the part that does not tick offers another file now
    _take(snapshot, history)


def _open(content: bytes, name: str) -> None:
    """Open a bundle and show it on the pages."""
    st.session_state[PROBLEM] = replay.open_bundle(content, name)
    if not st.session_state[PROBLEM]:
        st.session_state.pop(VERDICT, None)
        st.session_state.pop(JOB, None)


def _replay_this() -> None:
    job = _job()
    if job is not None and job.bundle is not None:
        replay.open_replay(ReplayView.of(job.bundle))


def _repeat() -> None:
    view = engine_access.replay()
    if view is None or view.bundle is None:
        return
    try:
        st.session_state[VERDICT] = repeat(view.bundle, check_laws=False).sentences()
    except BatchscopeError as error:
        st.session_state[VERDICT] = [str(error)]


def _bundles() -> None:
    """Open a bundle; outside the fragment that ticks, so that an upload is not disturbed."""
    st.space("small")
    frame.figure_head(
        "Open a run",
        "replayed",
        how="All pages of Watch then show it, step by step, with a bar to move in time; the live engine runs on unseen.",
    )
    left, right = st.columns(2, gap="large")
    with left:
        file = st.file_uploader("A run bundle (zip)", "zip", key="bundle_file", max_upload_size=UPLOAD_MB)
        if file is not None and st.button("Open this bundle", key="open_bundle", icon=":material/play_circle:"):
            with st.spinner("Reading the bundle"):
                _open(file.getvalue(), file.name)
            if not st.session_state.get(PROBLEM):
                st.rerun()
        if st.session_state.get(PROBLEM):
            st.error(frame.plain(st.session_state[PROBLEM]), icon=":material/error:")
    with right:
        view = engine_access.replay()
        if view is None:
            st.caption("Or look again at the run that this dashboard has just made: make its bundle above, then")
            job = _job()
            if st.button("Replay this run", key="replay_this", disabled=job is None or job.bundle is None,
                         icon=":material/history:", on_click=_replay_this):  # fmt: skip
                st.rerun()
        else:
            st.page_link(HERE / "live.py", label="See it on the Live page", icon=":material/stacked_bar_chart:")
            st.page_link(HERE / "kv_blocks.py", label="See its KV blocks", icon=":material/grid_view:")
            st.button("Repeat it: is the schedule identical?", key="repeat_bundle", on_click=_repeat, icon=":material/repeat:")
            for line in st.session_state.get(VERDICT, ()):
                st.text(line)
    st.caption(
        "Without a browser: `python -m core.run --scenario FILE --out DIR` runs a scenario, `python -m core.run --bundle FILE`"
        " repeats a bundle, `python -m core.report BUNDLE` writes its report."
    )


ticker.live(
    "What do I take away from this run?",
    render,
    about="Everything that others need to see it, check it and repeat it.",
    history_steps=20_000,
)
_files()
_bundles()
frame.footer()
