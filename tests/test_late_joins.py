"""Admission between two launches: decided, prepared, joined late, launched; the real model, the thread, the record."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from core.commands import Outcome
from core.config import AdmissionMoment, PreemptionMode, SchedulerConfig, replace_knobs
from core.control import LOCAL
from core.engine import Engine
from core.errors import ConfigError, ExecutorError, WorkerDied
from core.executor import PreparingExecutor
from core.launch_shapes import capture_size, shape_changes, shape_figures
from core.outputs import SchedulerOutput
from core.replay import replay
from core.request import SamplingParams
from core.run_record import RunRecord, RunRecorder
from tests.engine_cases import scripted_engine, tiny_engine, tokens_of
from tests.live_cases import FOREVER, ME, PATIENCE_S, SHORT, live_engine, ready, wait_until

KNOBS: dict[str, Any] = {
    "num_blocks": 28, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24, "num_swap_blocks": 16,
    "admission_moment": "between_launches",
}  # fmt: skip


class Arrivals:
    """Seeded submissions, handed in between decision and launch (`late`) or before the step."""

    def __init__(self, engine: Engine, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        self.engine, self.step = engine, 0
        self.due: dict[int, list[tuple[list[int], SamplingParams, bool]]] = {}
        shared = [rng.randrange(1, 250) for _ in range(8)]
        for step in range(steps):
            if rng.random() < 0.4:
                prompt = shared * rng.randint(0, 1) + [rng.randrange(1, 250) for _ in range(rng.randint(1, 20))]
                params = SamplingParams(max_tokens=rng.randint(1, 20), temperature=rng.choice((0.0, 0.9)), seed=5)
                self.due.setdefault(step, []).append((prompt, params, rng.random() < 0.6))

    def hand_in(self, *, late: bool) -> None:
        for at, (prompt, params, is_late) in enumerate(self.due.get(self.step, ())):
            if is_late is late:
                self.engine.add_request(prompt, params, request_id=f"s{self.step}-{at}")

    def run(self) -> list[Any]:
        events: list[Any] = []
        self.engine.between_launches = lambda: self.hand_in(late=True)
        while self.step <= max(self.due) or self.engine.has_work():
            self.hand_in(late=False)
            if not self.engine.has_work():
                self.hand_in(late=True)
            events += self.engine.step()
            self.step += 1
            assert self.step < 2000
        return events


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_late_joins_change_no_token_and_replay_to_identical_decisions(mode: PreemptionMode) -> None:
    recorder = RunRecorder()
    engine = tiny_engine(recorder=recorder, clock="wall", preemption_mode=mode, **KNOBS)
    arrivals = Arrivals(engine, 3, 60)
    tokens = tokens_of(arrivals.run())
    record = recorder.record()
    changes = shape_changes(engine.records)
    void = [c for c in changes if c.decided_rows]
    assert len(void) > 8
    assert all(c.discarded_s > 0 and c.launched_rows == c.decided_rows + c.joined for c in void)
    assert sum(len(o.preemptions) for o in record.outputs()) > 0
    assert all(r.discarded_s == 0 for r in engine.records if not r.late_joins)
    late = [e for e in record.entries if getattr(e, "late", False)]
    assert len(late) > 8

    plain = tiny_engine(num_blocks=256, block_size=4, max_num_seqs=1)
    for requests in arrivals.due.values():
        for prompt, params, _ in requests:
            plain.add_request(prompt, params)
    assert list(tokens_of(plain.run_until_idle()).values()) == [tokens[i] for i in sorted(tokens, key=_arrival)]

    again = RunRecord.from_lines(list(record.lines()))
    assert again == record
    result = replay(again, tokenizer=engine.tokenizer, check_laws=True)
    assert (result.divergence, result.steps) == (None, engine.scheduler.step)


def _arrival(request_id: str) -> tuple[int, int]:
    step, at = request_id[1:].split("-")
    return int(step), int(at)


def test_the_setting_changes_while_requests_run() -> None:
    engine = tiny_engine(**{**KNOBS, "admission_moment": "step_boundary", "num_blocks": 128})
    engine.between_launches = lambda: late.append(engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True)))
    late: list[str] = []
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    assert late == []
    engine.set_scheduler(replace_knobs(engine.config.scheduler, admission_moment=AdmissionMoment.BETWEEN_LAUNCHES))
    engine.step()
    record = engine.latest_record
    assert record is not None
    assert (record.decided_rows, record.late_joins, record.prefill_requests + record.decode_requests) == (1, 1, 2)
    engine.set_scheduler(replace_knobs(engine.config.scheduler, admission_moment=AdmissionMoment.STEP_BOUNDARY))
    engine.step()
    assert len(late) == 1
    engine.run_until_idle()
    assert engine.snapshot().totals.finished == 2


def test_without_late_arrivals_the_decisions_are_those_of_the_scheduler_alone() -> None:
    outputs: list[list[SchedulerOutput]] = []
    for moment in AdmissionMoment:
        recorder = RunRecorder()
        engine = scripted_engine(recorder=recorder, admission_moment=moment, num_blocks=24, block_size=4, max_num_seqs=4)
        for n in range(9):
            engine.add_request(list(range(1, 6 + 2 * n)), SamplingParams(max_tokens=6, ignore_eos=True))
        engine.run_until_idle()
        outputs.append(list(recorder.record().outputs()))
    boundary, between = outputs
    assert [o.request_ids for o in boundary[1:]] == [o.request_ids for o in between[1:]]
    assert between[0].late_joins == between[0].request_ids == boundary[0].request_ids


def test_only_submissions_are_taken_between_decision_and_launch() -> None:
    engine = scripted_engine(admission_moment="between_launches")
    first = engine.add_request([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    refused: list[str] = []

    def interfere() -> None:
        for act in (lambda: engine.cancel(first), lambda: engine.set_scheduler(SchedulerConfig()), engine.reset):
            with pytest.raises(ConfigError, match="must wait for the step boundary"):
                act()
            refused.append("refused")

    engine.between_launches = interfere
    engine.step()
    assert len(refused) == 3
    engine.between_launches = None
    engine.cancel(first)


class Preparing:
    """Gives a scripted executor the preparing half; the n-th call fails."""

    def __init__(self, engine: Engine, failures: dict[int, ExecutorError] | None = None) -> None:
        self.failures, self.prepared = failures or {}, []
        engine.executor.prepare_model = self.prepare  # type: ignore[attr-defined]
        assert isinstance(engine.executor, PreparingExecutor)

    def prepare(self, output: SchedulerOutput) -> None:
        self.prepared.append(output.request_ids)
        if error := self.failures.get(len(self.prepared)):
            raise error


@pytest.mark.parametrize("error", [WorkerDied("gone"), ExecutorError("no memory")])
def test_a_batch_that_cannot_be_prepared_loses_no_request(error: ExecutorError) -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder, admission_moment="between_launches")
    helper = Preparing(engine, {2: error})
    ids = [engine.add_request([1, 2, 3, n], SamplingParams(max_tokens=4, ignore_eos=True)) for n in range(2)]
    engine.between_launches = lambda: ids.append(engine.add_request([7, 8], SHORT)) if len(ids) < 4 else None
    events = engine.step() + engine.step() + engine.step()
    if engine.failed:
        engine.recover()
    events += engine.run_until_idle()
    assert {i: len(t) for i, t in tokens_of(events).items()} == dict.fromkeys(ids, 4)
    assert len(helper.prepared) > 3
    assert replay(recorder.record()).divergence is None


def test_a_prompt_that_comes_while_the_batch_is_prepared_joins_that_step_and_other_commands_wait() -> None:
    gate, inside, sizes = threading.Event(), threading.Event(), []

    def factory(wanted: object, progress: object) -> Engine:
        engine = scripted_engine(admission_moment="between_launches")

        def prepare(output: SchedulerOutput) -> None:
            sizes.append(len(output.request_ids))
            if len(sizes) == 3:
                inside.set()
                assert gate.wait(PATIENCE_S)

        engine.executor.prepare_model = prepare  # type: ignore[attr-defined]
        return engine

    with live_engine(factory=factory) as live:
        ready(live)
        live.submit(token_ids=[1, 2, 3], sampling=FOREVER, **ME)
        assert inside.wait(PATIENCE_S)
        submit = {"sampling": SHORT, "source": "api", "session_id": LOCAL, "wait_s": 0.0}
        first = live.submit(token_ids=[4, 5], request_id="first", **submit)
        assert first.outcome is Outcome.WAITING
        live.pause(session_id=LOCAL, wait_s=0.0)
        live.submit(token_ids=[6, 7], request_id="second", **submit)
        gate.set()
        wait_until(lambda: [e.outcome for e in live.audit() if e.command == "pause"] == ["accepted"], what="the pause")
        wait_until(lambda: live.latest().num_waiting == 1, what="the second prompt in the queue")
        joined = [r for r in live.history() if r.late_joins and r.decided_rows]
        assert [(r.decided_rows, r.late_joins) for r in joined] == [(1, 1)], "the prompt behind the pause waits for a step"
        assert [r.request_id for r in live.latest().waiting] == ["second"]


def test_captured_sizes_and_sums() -> None:
    assert [capture_size(n) for n in (0, 1, 2, 3, 5, 8, 9, 256, 257, 500)] == [0, 1, 2, 4, 8, 8, 16, 256, 272, 512]
    engine = scripted_engine(admission_moment="between_launches")
    engine.add_request([1, 2], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    due = [1, 1, 0, 3]

    def arrive() -> None:
        for _ in range(due.pop(0) if due else 0):
            engine.add_request([3, 4], SamplingParams(max_tokens=9, ignore_eos=True))

    engine.between_launches = arrive
    engine.run_until_idle()
    figures = shape_figures(list(engine.records))
    sizes = [(c.decided_rows, c.launched_rows, c.decided_size, c.launched_size) for c in shape_changes(engine.records)]
    assert sizes == [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 4), (3, 6, 4, 8)]
    assert (figures.joined, figures.void, figures.resized, figures.discarded_s) == (4, 3, 3, 0.0)
