"""Runs as data: canonical text, reading back, and what broken files say."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from core.config import CacheConfig, EngineConfig, QueuePolicy, SchedulerConfig, TenantConfig
from core.engine_commands import Cancel, Recompute, Recover, Reset, SetCache, SetPriority, SetScheduler, Submit
from core.errors import TraceError, WorkerDied
from core.executor import ExecutorInfo
from core.model_spec import TINY
from core.outputs import ModelRunnerOutput, NewRequestData, Preemption, SchedulerOutput, StepTiming
from core.plain_data import canonical_json, from_plain, to_plain
from core.request import SLO, SamplingParams
from core.run_record import CommandEntry, FailureEntry, RunHeader, RunRecord, RunRecorder, StepEntry

INFO = ExecutorInfo(TINY, "tiny", "cpu", "float32", 1, 1, 1024, 4, 64)
OUTPUT = SchedulerOutput(
    3,
    ("a",),
    (2,),
    (0,),
    (True,),
    (True,),
    new_requests=(NewRequestData("a", (1, 2), 2, (7,), SamplingParams(stop=("é",)), 9),),
    swap_out=((1, 2), (3, 4)),
    preemptions=(Preemption(3, "b", "a", 2, 5, 0, "memory"),),
)
RESULT = ModelRunnerOutput(3, (("a", 5),), StepTiming(0.1, 0.2, 0.3, 0.0))


def some_record() -> RunRecord:
    config = EngineConfig(scheduler=SchedulerConfig(queue_policy=QueuePolicy.WEIGHTED_FAIR, tenants=(TenantConfig("x", 2.0),)))
    commands = (
        Submit("a", (1, 2), SamplingParams(temperature=0.7, seed=3), slo=SLO(0.5, None), arrival_time_s=1 / 3),
        SetPriority("a", -2),
        SetScheduler(SchedulerConfig(max_num_seqs=2)),
        SetCache(CacheConfig(num_blocks=9)),
        Cancel("a"),
        Reset(),
        Recover(),
        Recompute(),
    )
    entries = [CommandEntry(2, 0.1 * n, command) for n, command in enumerate(commands)]
    steps = (StepEntry(0.5, 0.75, OUTPUT, RESULT), FailureEntry(1.0, 1.5, OUTPUT, True, "the worker ended"))
    return RunRecord(RunHeader(config, INFO, 128, (0, 2)), (*entries, *steps))


def test_a_record_reads_back_equal_and_writes_the_same_bytes() -> None:
    record = some_record()
    lines = list(record.lines())
    again = RunRecord.from_lines(lines)
    assert again == record
    assert list(again.lines()) == lines
    assert len(lines) == 1 + len(record.entries)
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert list(record.outputs()) == [OUTPUT, OUTPUT]


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": 1, "a": (1.0, None, True)}) == '{"a":[1.0,null,true],"b":1}'
    for value in (0.1 + 0.2, 1 / 3, 1e-300, 123456789.123456789):
        assert json.loads(canonical_json(value)) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(math.nan)
    with pytest.raises(TypeError, match="set has no plain form"):
        canonical_json({1, 2})


@dataclasses.dataclass(frozen=True)
class Sample:
    number: int
    share: float = 0.5
    pair: tuple[int, str] = (0, "")


def test_plain_data_that_do_not_fit_are_refused_with_what_was_found() -> None:
    assert from_plain(Sample, {"number": 3, "share": 1, "pair": [4, "x"]}) == Sample(3, 1.0, (4, "x"))
    assert to_plain(Sample(3)) == {"number": 3, "share": 0.5, "pair": [0, ""]}
    for plain, found in [
        ({"number": "three"}, "'three'"),
        ({"number": True}, "True"),
        ({"number": 3, "more": 1}, "no field more"),
        ({}, "number"),
        ({"number": 1, "pair": [1]}, "1 items where 2"),
        ([], "Sample"),
    ]:
        with pytest.raises(TraceError, match=found):
            from_plain(Sample, plain)
    with pytest.raises(TraceError, match="one of"):
        from_plain(QueuePolicy, "lifo")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], "no header"),
        (["{"], "line 1"),
        (["[]"], "line 1"),
        (['{"kind":"header","version":99}'], "format 99"),
        ([next(iter(some_record().lines())), '{"kind":"step"}'], "line 2"),
        ([next(iter(some_record().lines())), '{"kind":"dance"}'], "line 2"),
        ([next(iter(some_record().lines())), '{"kind":"command","name":"Fly","step":1,"time_s":0,"command":{}}'], "line 2"),
    ],
)
def test_a_broken_record_names_the_line(lines: list[str], found: str) -> None:
    with pytest.raises(TraceError, match=found):
        RunRecord.from_lines(lines)


def test_a_recorder_is_bounded_and_says_so() -> None:
    recorder = RunRecorder(max_steps=3)
    with pytest.raises(TraceError, match="nothing was recorded"):
        recorder.record()
    recorder.begin(RunHeader(EngineConfig(), INFO, 128, (0,)))
    for n in range(3):
        recorder.on_step(n, n + 0.5, OUTPUT, RESULT)
    assert not recorder.record().truncated
    recorder.on_failure(3, 3.5, OUTPUT, WorkerDied("gone"))
    recorder.on_command(4, 4.0, Cancel("a"))
    assert recorder.record().truncated
    assert len(recorder.record().entries) == 3
    assert RunRecord.from_lines(recorder.record().lines()).truncated
