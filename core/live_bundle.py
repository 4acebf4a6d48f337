"""The run that the dashboard shows as a bundle: the live engine's so far, or the one that is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.bundle import RunBundle, make_bundle
from core.records import RequestRecord, StepRecord
from core.replay_view import ReplayView
from core.run_entries import CommandEntry, FailureEntry
from core.run_record import RunRecord
from core.snapshot import EngineSnapshot

LIVE_NAME = "dashboard run"


def _last_moment(record: RunRecord) -> tuple[int, float]:
    """(step, time) of the last recorded decision."""
    for entry in reversed(record.entries):
        if not isinstance(entry, CommandEntry):
            return entry.output.step, entry.failed_s if isinstance(entry, FailureEntry) else entry.answered_s
    return 0, 0.0


def _dropped(picture: EngineSnapshot, kept: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> str:
    """What the bounded records of the run have lost by the time of the picture; "" if nothing."""
    ended = picture.totals.finished + picture.totals.cancelled
    have = sum(r.finished_s <= picture.time_s for r in kept)
    ran = picture.tallies.step_tokens.count
    have_steps = sum(r.step <= picture.step for r in steps)
    words = ""
    if have < ended:
        words += f"; of {ended} requests that had ended the records of the newest {have} are kept, {ended - have} were dropped"
    if have_steps < ran:
        words += f"; of {ran} steps the records of {have_steps} are kept, the older ones thinned out"
    return words


def bundle_of(live: Any) -> RunBundle:
    """The bundle of a live engine's run so far, or of a replay; takes a while for a long run, so call it off the engine's thread.

    Args:
        live: `core.live_view.LiveView` or `core.replay_view.ReplayView`.

    Raises:
        ControlRefused: while the engine starts, or if it records nothing.
    """
    if isinstance(live, ReplayView) and live.bundle is not None:
        return live.bundle
    record: RunRecord = live.run_record()
    picture = live.latest()
    step, time_s = _last_moment(record)
    # Steps and requests that came between the two readings belong to a later bundle.
    kept_steps, kept = live.history(-1), live.requests()
    steps = tuple(r for r in kept_steps if r.step <= step)
    requests = tuple(r for r in reversed(kept) if r.finished_s <= time_s)
    lost = _dropped(picture, kept, kept_steps)
    return make_bundle(
        record,
        steps,
        requests,
        name=LIVE_NAME,
        load=picture.load_label,
        seed=record.header.config.seed,
        ceilings=picture.ceilings,
        note="only the beginning of the run was recorded" + lost
        if record.truncated
        else f"was taken at step {step}; the engine ran on{lost}",
    )
