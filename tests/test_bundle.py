"""Run bundles: what goes in comes out, damage is named, a failed write leaves nothing, a replay decides the same."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from core import atomic_file
from core.atomic_file import make_folder, write_bytes
from core.bundle import FORMAT_VERSION, bundle_bytes, read_bundle, write_bundle
from core.errors import BundleError, ControlRefused, ExportError, UnknownRequest
from core.outputs import BoundBy
from core.plain_data import to_plain
from core.repeat import repeat
from core.replay_view import ReplayView
from core.run_record import CommandEntry, StepEntry
from core.version import VERSION
from tests.bundle_cases import simulated_bundle

ROOT = Path(__file__).resolve().parents[1]


def changed(raw: bytes, name: str, content: bytes | None) -> bytes:
    """A bundle with one file replaced, or left out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for item in old.namelist():
            if item != name:
                new.writestr(item, old.read(item))
            elif content is not None:
                new.writestr(item, content)
    return out.getvalue()


def manifest(raw: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


def test_the_version_is_that_of_the_project() -> None:
    assert f'version = "{VERSION}"' in (ROOT / "pyproject.toml").read_text()


def test_a_bundle_reads_back_equal_and_equal_runs_are_equal_bytes(tmp_path: Path) -> None:
    bundle = simulated_bundle()
    path = write_bundle(bundle, tmp_path / "a.bundle.zip")
    assert read_bundle(path) == bundle
    assert path.read_bytes() == bundle_bytes(simulated_bundle())
    assert [p.name for p in tmp_path.iterdir()] == ["a.bundle.zip"]
    assert bundle.manifest.kind == "predicted"
    assert bundle.manifest.requests == 24


def test_the_tables_tell_the_run_to_other_tools() -> None:
    bundle = simulated_bundle()
    with zipfile.ZipFile(io.BytesIO(bundle_bytes(bundle))) as archive:
        tables = {n: pq.read_table(io.BytesIO(archive.read(n))).to_pydict() for n in archive.namelist() if n.endswith("parquet")}
    steps, requests, arrivals, events = (tables[f"{n}.parquet"] for n in ("steps", "requests", "arrivals", "events"))
    assert steps["output_tokens"] == [r.output_tokens for r in bundle.steps]
    assert sum(steps["output_tokens"]) == sum(requests["output_tokens"]) == events["kind"].count("token")
    assert arrivals["prompt_tokens"] == [len(ids) for ids in arrivals["prompt_token_ids"]]
    assert len(arrivals["request_id"]) == 24 == events["kind"].count("submitted") == events["kind"].count("ended")
    assert events["kind"].count("preempted") == sum(steps["preempted"]) > 0
    assert events["time_s"] == sorted(events["time_s"])
    kinds = [k for k, i in zip(events["kind"], events["request_id"], strict=True) if i == arrivals["request_id"][0]]
    assert kinds[:3] == ["submitted", "admitted", "token"]
    assert kinds[-1] == "ended"


@pytest.mark.parametrize("name", ["config.json", "environment.json", "record.jsonl", "steps.parquet", "requests.parquet"])
def test_a_missing_or_altered_part_is_named(name: str) -> None:
    raw = bundle_bytes(simulated_bundle())
    with pytest.raises(BundleError, match=f"{name} is missing|no item named '{name}'"):
        read_bundle(changed(raw, name, None))
    with pytest.raises(BundleError, match=f"{name} is not what was written"):
        read_bundle(changed(raw, name, b"something else"))


def test_a_newer_bundle_asks_for_an_update() -> None:
    raw = bundle_bytes(simulated_bundle())
    newer = manifest(raw) | {"format_version": FORMAT_VERSION + 1, "program_version": "9.9"}
    with pytest.raises(BundleError, match=r"written by batchscope 9\.9.*update"):
        read_bundle(changed(raw, "manifest.json", json.dumps(newer).encode()))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged or no bundle"),
        (b"PK\x03\x04 and then nothing", "damaged or no bundle"),
        (b"step,tokens\n1,2\n", "damaged or no bundle"),
    ],
)
def test_what_is_no_bundle_is_said_so(content: bytes, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        read_bundle(content, "x.zip")


def test_a_bundle_that_is_cut_off_or_flipped_is_damaged() -> None:
    raw = bundle_bytes(simulated_bundle())
    with pytest.raises(BundleError, match="damaged"):
        read_bundle(raw[: len(raw) // 2])
    middle = len(raw) // 2
    flipped = raw[:middle] + bytes(b ^ 0xFF for b in raw[middle : middle + 64]) + raw[middle + 64 :]
    with pytest.raises(BundleError, match="damaged"):
        read_bundle(flipped)
    with pytest.raises(BundleError, match="no run bundle"):
        read_bundle(changed(raw, "manifest.json", None))
    with pytest.raises(BundleError, match="no run bundle"):
        read_bundle(changed(raw, "manifest.json", b'{"format": "something"}'))
    with pytest.raises(BundleError, match="there is no file"):
        read_bundle(Path("nowhere.bundle.zip"))


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.bundle.MAX_BYTES", 1000)
    with pytest.raises(BundleError, match="unpacks to"):
        read_bundle(bundle_bytes(simulated_bundle()))


class FullDisk(io.FileIO):
    """A file on a disk that is full after 4 KiB."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 4096:
            super().write(bytes(data)[: 4096 - self.tell()])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_bytes(tmp_path / "run.bundle.zip", b"old")
    bundle = simulated_bundle()
    monkeypatch.setattr(Path, "open", lambda self, mode: FullDisk(self, mode.replace("b", "")))
    with pytest.raises(ExportError, match="the disk is full"):
        write_bundle(bundle, target)
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.bundle.zip"]


def test_unwritable_folders_are_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="does not exist; make it first"):
        write_bytes(tmp_path / "no" / "x", b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ExportError, match="is a file and no folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(ExportError, match="a file and no folder"):
        write_bytes(tmp_path / "file" / "x", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExportError, match="a folder of that name"):
        write_bytes(tmp_path / "folder", b"")

    def refuse(_self: Path, _mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ExportError, match="may not be written to"):
        write_bytes(tmp_path / "y", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert set(atomic_file._WAY_OUT) >= {errno.ENOSPC, errno.EROFS}


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_file.atomic_file(tmp_path / "z") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


# -- repeating it ----------------------------------------------------------------------------------------------


def test_a_bundle_repeats_to_the_identical_schedule_and_tokens() -> None:
    bundle = read_bundle(bundle_bytes(simulated_bundle()))
    again = repeat(bundle, with_model=True)
    assert again.identical
    assert again.steps == again.total == len(list(bundle.record.outputs()))
    assert again.tokens is not None
    assert again.tokens.compared == sum(r.output_tokens for r in bundle.steps) > 100
    assert "came out identical" in again.sentences()[0]


def test_another_decision_and_another_token_are_found() -> None:
    bundle = simulated_bundle()
    entries = list(bundle.record.entries)
    at = next(i for i, e in enumerate(entries) if isinstance(e, StepEntry) and e.output.step == 30)
    step = entries[at]
    assert isinstance(step, StepEntry)
    other = BoundBy.QUOTA if step.output.bound_by is not BoundBy.QUOTA else BoundBy.LOAD
    entries[at] = replace(step, output=replace(step.output, bound_by=other))
    outcome = repeat(replace(bundle, record=replace(bundle.record, entries=tuple(entries))))
    assert not outcome.identical
    assert outcome.steps == 29
    assert "step 30: bound_by" in outcome.sentences()[0]

    request_id, token = step.result.sampled[0]
    sampled = ((request_id, token + 1), *step.result.sampled[1:])
    entries[at] = replace(step, result=replace(step.result, sampled=sampled))
    outcome = repeat(replace(bundle, record=replace(bundle.record, entries=tuple(entries))), with_model=True)
    assert outcome.tokens is not None
    assert not outcome.identical
    assert (outcome.tokens.different, outcome.tokens.first) == (1, (30, request_id))


# -- looking at it ---------------------------------------------------------------------------------------------


def test_the_view_shows_every_step_as_it_was_in_any_order() -> None:
    bundle = simulated_bundle()
    view = ReplayView.of(bundle)
    view._stride = 10  # many forks, so that going back starts from one
    forward = {}
    for step in range(view.first_step, view.last_step + 1):
        assert view.seek(step) == step
        forward[step] = view.latest()
    assert view.divergence is None
    assert len(view._forks) > 4
    for step in (50, 3, 51, 17, 70, 16, 1, 72, 33, 34):
        view.seek(step)
        assert view.latest() == forward[step]
        assert view.history()[-1].step == step
    last = forward[view.last_step]
    assert last.totals.finished == 24
    assert (last.state, last.info.kind if last.info else "") == ("paused", "replayed")


def test_the_view_marks_everything_replayed_and_keeps_the_recorded_numbers() -> None:
    bundle = simulated_bundle()
    view = ReplayView.of(bundle)
    view.seek(40)
    shown = view.history(20)
    assert [r.step for r in shown] == list(range(21, 41))
    assert {r.kind for r in shown} == {"replayed"}
    assert [replace(r, kind="predicted") for r in shown] == [r for r in bundle.steps if 20 < r.step <= 40]
    assert view.latest().step_record == shown[-1]
    running = view.latest().running[0].request_id
    story = view.story(running)
    assert story is not None
    assert max(e.step for e in story.events) <= 40
    view.seek(10_000)
    assert view.step == view.last_step
    assert view.requests() == tuple(reversed(bundle.requests))


def test_the_view_refuses_commands_and_ends_where_this_program_decides_otherwise() -> None:
    bundle = simulated_bundle()
    view = ReplayView.of(bundle)
    for command in ("start", "pause", "submit", "set_scheduler", "reset"):
        with pytest.raises(ControlRefused, match="this is a replay"):
            getattr(view, command)(session_id="a")
    with pytest.raises(UnknownRequest):
        view.stream("r-000001")
    with pytest.raises(AttributeError):
        view.no_such_thing  # noqa: B018
    entries = [
        replace(e, output=replace(e.output, full_batch=not e.output.full_batch))
        if isinstance(e, StepEntry) and e.output.step == 20
        else e
        for e in bundle.record.entries
    ]
    other = ReplayView.of(replace(bundle, record=replace(bundle.record, entries=tuple(entries))))
    assert other.seek(50) == 19
    assert other.last_step == 19
    assert other.divergence is not None
    assert other.divergence.field == "full_batch"


def test_a_fork_goes_its_own_way() -> None:
    bundle = simulated_bundle()
    first = ReplayView.of(bundle)
    first.seek(30)
    replay = first._replay
    before = to_plain(replay.engine.scheduler.totals(0))
    fork = replay.fork()
    while fork.advance():
        fork.engine.check_invariants()
    assert to_plain(replay.engine.scheduler.totals(0)) == before
    assert fork.engine.scheduler.totals(0).finished == 24
    assert not any(isinstance(e, CommandEntry) for e in bundle.record.entries[replay._at :])
