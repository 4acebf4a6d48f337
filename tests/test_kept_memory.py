"""What a long run keeps, in bytes: by what becomes free when a history is let go, and object by object."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

import pytest
from engine_cases import scripted_engine

from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.engine import Engine
from core.engine_commands import Cancel, Submit
from core.factory import create_engine
from core.outputs import BoundBy, ModelRunnerOutput, PassedOver, SchedulerOutput
from core.packed_entries import PIECE, PackedEntries, pack_entries, unpack_entries
from core.picture_history import KEPT_PICTURES, PictureHistory
from core.records import StepRecord
from core.replay import Replay, replay
from core.request import SamplingParams
from core.run_entries import CommandEntry, FailureEntry, StepEntry
from core.run_record import RunRecord, RunRecorder
from core.step_history import CHUNK_STEPS, OPEN_CHUNKS, StepHistory

ROWS = 32
PROMPT = 100
STEPS = 20_000
MOST_STEP_BYTES, MOST_REQUEST_BYTES = 450, 650
"""Of the run record: a step of 32 rows, and what a request with a prompt of 100 random tokens adds to it."""
MOST_RECORD_BYTES = 110
"""Of an old step record; a new one is an object with its numbers."""
NEW_RECORD_BYTES = 1000
MOST_BYTES = 25e6
"""All of it at the default bounds."""


class Run:
    """32 requests at a time with random prompts and lengths, on the simulator and on the record."""

    def __init__(self) -> None:
        self.recorder = RunRecorder(STEPS)
        config = EngineConfig(
            model="smollm2", executor="simulated", history_steps=STEPS,
            scheduler=SchedulerConfig(max_num_seqs=ROWS), cache=CacheConfig(num_blocks=1024),
        )  # fmt: skip
        self.engine: Engine = create_engine(config, recorder=self.recorder)
        self.pictures = PictureHistory(period_s=0.0)
        self.requests = 0
        self._draw = random.Random(7)
        for _ in range(ROWS):
            self._ask()

    def _ask(self) -> None:
        prompt = [self._draw.randrange(40_000) for _ in range(PROMPT)]
        self.engine.add_request(prompt, SamplingParams(max_tokens=self._draw.randrange(20, 140), ignore_eos=True))
        self.requests += 1

    def steps(self, count: int, picture_every: int = 0) -> Run:
        """Run on; nobody looks at the pictures."""
        for step in range(count):
            for event in self.engine.step():
                if event.kind == "finished":
                    self._ask()
            if picture_every and step % picture_every == 0:
                self.pictures.add(replace(self.engine.snapshot(float(step)), wall_time_s=float(step)))
        return self


@pytest.fixture
def template() -> tuple[StepRecord, ...]:
    return Run().steps(300).engine.records.since(-1)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def freed(let_go: Callable[[], object]) -> int:
    """Bytes that become free."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    let_go()
    gc.collect()
    return before - tracemalloc.get_traced_memory()[0]


def test_a_recorded_step_is_some_hundred_bytes(traced: None) -> None:
    run = Run().steps(500)
    steps = run.engine.scheduler.step
    size = freed(lambda: run.recorder.begin(run.recorder.record().header))
    print(f"{size / steps:.0f} B a step, {run.requests / steps:.2f} requests a step")
    assert size > 50 * steps  # it was there
    assert size <= steps * MOST_STEP_BYTES + run.requests * MOST_REQUEST_BYTES


def test_an_old_step_record_is_some_dozen_bytes_and_a_new_one_an_object(template: tuple[StepRecord, ...], traced: None) -> None:
    history, count = StepHistory(STEPS), 6000
    for step in range(count):
        record = template[step % len(template)]
        history.append(replace(record, step=step, start_s=record.start_s + step, flops=record.flops + step))
    size = freed(history.clear)
    new = (OPEN_CHUNKS + 1) * CHUNK_STEPS
    print(f"{size / 1e6:.2f} MB for {count:,} records")
    assert size > count * 40
    assert size <= new * NEW_RECORD_BYTES + (count - new) * MOST_RECORD_BYTES


def size_of(root: object, seen: set[int]) -> int:
    """Bytes of all objects that are reached from `root` and not `seen` yet."""
    size, found = 0, [root]
    while found:
        item = found.pop()
        if id(item) not in seen and not isinstance(item, _CODE):
            seen.add(id(item))
            size += sys.getsizeof(item)
            found += gc.get_referents(item)
    return size


_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, Enum)


@pytest.mark.slow
def test_all_that_a_run_keeps_at_its_bounds_is_less_than_25_mb() -> None:
    run = Run().steps(STEPS + 500, picture_every=40)
    engine, seen = run.engine, set()
    assert run.recorder.truncated
    assert len(run.pictures.pictures) > KEPT_PICTURES * 3 // 4
    size_of((engine.config, engine.info, engine.executor, engine._cost), seen)  # there from the start
    parts = {
        "run record": run.recorder,
        "telemetry": engine.telemetry,
        "stories": engine._books.stories,
        "pictures": run.pictures.pictures,
    }
    kept = {name: size_of(part, seen) for name, part in parts.items()}
    print({name: f"{size / 1e6:.2f} MB" for name, size in kept.items()})
    assert sum(kept.values()) <= MOST_BYTES


# -- packed and the same ---------------------------------------------------------------------------------------


def test_packed_entries_read_as_the_objects_that_were_recorded() -> None:
    run, plain = Run(), []
    for name, kind in (("on_step", StepEntry), ("on_command", CommandEntry)):
        record = getattr(run.recorder, name)

        def both(*fields: object, kind=kind, record=record, **more: object) -> None:
            plain.append(kind(*fields, **more))
            record(*fields, **more)

        setattr(run.recorder, name, both)
    first = len(run.recorder.record().entries)
    run.steps(200)
    record = run.recorder.record()
    entries = record.entries
    assert isinstance(entries, PackedEntries)
    assert len(entries) - first == len(plain) > 10 * PIECE
    assert list(entries[first:]) == plain
    assert [entries[n] for n in (-1, first, first + 3 * PIECE + 1)] == [plain[-1], plain[0], plain[3 * PIECE + 1]]
    assert list(reversed(entries))[: len(plain)] == plain[::-1]
    whole = RunRecord(record.header, tuple(entries), record.truncated)
    assert record == whole
    assert whole == record
    assert list(record.lines()) == list(whole.lines())
    assert deepcopy(record).entries is entries
    with pytest.raises(IndexError, match=f"of {len(entries)}"):
        entries[len(entries)]


def test_every_kind_of_entry_comes_back_equal_in_value_and_type() -> None:
    odd = SchedulerOutput(
        5, ("a", "b", "c"), (3, 1, 1), (0, 70_000, 2**40), (False, True, True), (True, False, False),
        passed_over=(PassedOver("d", BoundBy.MEMORY, "needs 2 blocks"),), bound_by=BoundBy.SEATS, late_joins=("c",),
    )  # fmt: skip
    entries = [
        CommandEntry(1, 0.5, Submit("a", (1, 2, 3), SamplingParams(stop=("é",), seed=4)), late=True),
        StepEntry(0.25, 0.5, odd, ModelRunnerOutput(5, (("b", 1), ("c", 2)), graph="graph hit 4")),
        StepEntry(0.5, 0.75, replace(odd, step=6), ModelRunnerOutput(6, (("c", 2), ("b", 1)))),  # in another order than the rows
        FailureEntry(1.0, 1.5, odd, True, "the worker ended"),
        CommandEntry(6, 2.0, Cancel("a")),
        StepEntry(2.0, 2.5, SchedulerOutput(7), ModelRunnerOutput(7)),
    ]
    for some in (entries, entries[:1], entries[3:5], entries[::-1]):
        again = unpack_entries(pack_entries(some))
        assert list(again) == some
        assert repr(again) == repr(tuple(some))


def test_a_replay_of_packed_entries_and_its_fork_are_identical() -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder)
    for n in range(12):
        engine.add_request((1, 2, 3 + n), SamplingParams(max_tokens=30 + n, ignore_eos=True))
    engine.run_until_idle()
    record = recorder.record()
    assert len(record.entries) > 2 * PIECE
    assert replay(record, check_laws=True).identical
    first = Replay(record)
    for _ in range(PIECE + 3):
        assert first.advance()
    second = first.fork()
    ends = []
    for run in (first, second):
        while run.advance():
            pass
        ends.append((run.engine.scheduler.step, run.engine.records.since(-1), run.engine.telemetry.requests))
    assert ends[0] == ends[1]
    assert ends[0][0] == engine.scheduler.step
