"""The golden test: a recorded run, replayed on a virtual clock, decides the same in every step; same seed, same bytes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from core.clock import VirtualClock, WallClock
from core.config import CacheConfig, PreemptionMode, QueuePolicy, SchedulerConfig, VictimPolicy
from core.engine import Engine
from core.errors import ExecutorError, RequestRefused, UnknownRequest, WorkerDied
from core.replay import Replay, first_difference, replay
from core.request import SamplingParams
from core.run_record import RunRecord, RunRecorder, StepEntry
from tests.engine_cases import scripted_engine, texts_of, tiny_engine, tokens_of


def busy_run(engine: Engine, seed: int, steps: int = 60) -> list[object]:
    """A run with arrivals, cancels, priorities and changes of settings at seeded steps, to its end."""
    rng = random.Random(seed)
    shared = [rng.randrange(1, 250) for _ in range(16)]
    events: list[object] = []
    for _ in range(steps):
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            head = shared[: rng.choice((0, 8, 16))]
            prompt = head + [rng.randrange(1, 250) for _ in range(rng.randint(1, 24))]
            temperature = rng.choice((0.0, 0.9))
            params = SamplingParams(max_tokens=rng.randint(1, 24), temperature=temperature, seed=rng.choice((None, 5)))
            engine.add_request(prompt, params, tenant=rng.choice("xy"), priority=rng.randint(0, 3))
        live = list(engine.scheduler.requests)
        if live and rng.random() < 0.08:
            engine.cancel(rng.choice(live))
        if live and rng.random() < 0.05:
            engine.set_priority(rng.choice(live), rng.randint(-2, 5))
        if rng.random() < 0.03:
            policy, victim = rng.choice(list(QueuePolicy)), rng.choice(list(VictimPolicy))
            engine.set_scheduler(dataclasses.replace(engine.config.scheduler, queue_policy=policy, victim_policy=victim))
        if rng.random() < 0.02:
            engine.set_cache(dataclasses.replace(engine.config.cache, num_blocks=rng.randint(20, 40)))
        events += engine.step()
    return events + engine.run_until_idle()


KNOBS = {"num_blocks": 28, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24, "num_swap_blocks": 16}


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("seed", range(2))
def test_a_recorded_run_on_the_real_model_replays_to_identical_decisions(seed: int, mode: PreemptionMode) -> None:
    recorder = RunRecorder()
    engine = tiny_engine(recorder=recorder, clock="wall", preemption_mode=mode, **KNOBS)
    events = busy_run(engine, seed)
    record = recorder.record()
    assert sum(len(o.preemptions) for o in record.outputs()) > 0
    result = replay(record, tokenizer=engine.tokenizer, check_laws=True)
    assert result.divergence is None
    assert result.identical
    assert result.steps == len(list(record.outputs())) > 60
    again, before = result.engine.snapshot(), engine.snapshot()
    assert again.totals == before.totals
    assert [r.request_id for r in again.recent_requests] == [r.request_id for r in before.recent_requests]
    assert again.recent_requests == before.recent_requests  # times included
    assert {r.kind for r in result.engine.records} == {"replayed"}
    assert [r.flops for r in result.engine.records] == [r.flops for r in engine.records]
    assert len(tokens_of(events)) > 10


def test_a_replay_from_text_gives_the_same_tokens_and_texts() -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder, clock=WallClock(), **KNOBS)
    events = busy_run(engine, 11)
    record = RunRecord.from_lines(list(recorder.record().lines()))
    run = Replay(record, tokenizer=engine.tokenizer, check_laws=True)
    seen: list[object] = []
    original = run.engine.step
    run.engine.step = lambda: seen.extend(original()) or []  # type: ignore[method-assign, func-returns-value]
    while run.advance():
        pass
    seen += original()
    assert tokens_of(seen) == tokens_of(events)
    assert texts_of(seen) == texts_of(events)


@pytest.mark.parametrize(("make", "seed"), [(tiny_engine, 1), (scripted_engine, 2), (scripted_engine, 3)])
def test_same_seed_same_run_byte_for_byte(make: Callable[..., Engine], seed: int) -> None:
    def text() -> str:
        recorder = RunRecorder()
        busy_run(make(recorder=recorder, seed=seed, **KNOBS), seed)
        return "\n".join(recorder.record().lines())

    first = text()
    assert first == text()
    assert first.count("\n") > 100


def test_another_seed_gives_another_run() -> None:
    def tokens(seed: int) -> dict[str, list[int]]:
        engine = tiny_engine(seed=seed)
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True))
        return tokens_of(engine.run_until_idle())

    assert tokens(1) != tokens(2)


def test_failures_are_replayed() -> None:
    recorder = RunRecorder()
    failures = {7: WorkerDied("gone"), 30: ExecutorError("out of memory")}
    engine = scripted_engine(recorder=recorder, clock=VirtualClock(), failures=failures, **KNOBS)
    for number in range(9):
        engine.add_request([number + 1] * 9, SamplingParams(max_tokens=20, ignore_eos=True))
    with pytest.raises(ExecutorError, match="out of memory"):
        engine.run_until_idle()
    record = RunRecord.from_lines(list(recorder.record().lines()))
    result = replay(record, check_laws=True)
    assert result.identical
    assert result.steps == 30
    assert result.engine.failed
    assert result.engine.snapshot().totals == engine.snapshot().totals


def test_a_recovered_run_replays() -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder, failures={5: ExecutorError("hiccup")}, **KNOBS)
    engine.add_request([1] * 9, SamplingParams(max_tokens=20, ignore_eos=True))
    with pytest.raises(ExecutorError):
        engine.run_until_idle()
    engine.recover()
    engine.run_until_idle()
    assert replay(recorder.record(), check_laws=True).identical


def test_a_changed_record_names_the_step_and_the_field() -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder, clock=VirtualClock(), **KNOBS)
    busy_run(engine, 4, steps=40)
    record = recorder.record()
    at = next(n for n, e in enumerate(record.entries) if isinstance(e, StepEntry) and e.output.step == 20)
    entry = record.entries[at]
    assert isinstance(entry, StepEntry)
    changed = dataclasses.replace(entry, output=dataclasses.replace(entry.output, num_waiting=99))
    result = replay(dataclasses.replace(record, entries=(*record.entries[:at], changed, *record.entries[at + 1 :])))
    assert not result.identical
    assert result.divergence is not None
    assert (result.divergence.step, result.divergence.field, result.divergence.recorded) == (20, "num_waiting", "99")
    assert "step 20: num_waiting was 99" in str(result.divergence)
    assert first_difference(entry.output, entry.output) is None


def test_another_scheduler_diverges() -> None:
    recorder = RunRecorder()
    busy_run(scripted_engine(recorder=recorder, **KNOBS), 4)
    record = recorder.record()
    config = dataclasses.replace(record.header.config, scheduler=SchedulerConfig(max_num_seqs=2))
    other = dataclasses.replace(record, header=dataclasses.replace(record.header, config=config))
    assert not replay(other).identical


def test_refused_commands_are_not_part_of_the_run(tmp_path: Path) -> None:
    recorder = RunRecorder()
    engine = scripted_engine(recorder=recorder)
    with pytest.raises(RequestRefused):
        engine.add_request([], SamplingParams(temperature=float("nan")))
    with pytest.raises(UnknownRequest):
        engine.cancel("nobody")
    engine.add_request([1], SamplingParams(max_tokens=2))
    engine.set_cache(CacheConfig(block_size=4, num_blocks=30))
    engine.run_until_idle()
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(recorder.record().lines()))
    record = RunRecord.from_lines(path.read_text().splitlines())
    assert record == recorder.record()
    assert [type(e).__name__ for e in record.entries][:2] == ["CommandEntry", "CommandEntry"]
    assert replay(record, check_laws=True).identical
