"""One step and what can go wrong in it: nothing is lost, nothing is invented, the books stay right."""

from __future__ import annotations

import dataclasses

import pytest

from core.clock import VirtualClock
from core.config import CacheConfig, SchedulerConfig, TenantConfig
from core.engine_core import MAX_RESTARTS_IN_A_ROW
from core.engine_laws import MAX_SILENT_STEPS, EngineLaws
from core.errors import ConfigError, ExecutorError, InvariantError, UnknownRequest, WorkerDied
from core.outputs import Preemption, RequestEvent, SchedulerOutput
from core.request import SLO, SamplingParams
from core.snapshot import PoolCounts, RooflineCeilings, Totals
from tests.engine_cases import GREEDY, ScriptedExecutor, scripted_engine, tokens_of

LONG = SamplingParams(max_tokens=20, ignore_eos=True)


def executor_of(engine: object) -> ScriptedExecutor:
    executor = engine.executor  # type: ignore[attr-defined]
    assert isinstance(executor, ScriptedExecutor)
    return executor


def plain_tokens(requests: dict[str, list[int]]) -> dict[str, list[int]]:
    """What the scripted executor answers without any disturbance."""
    engine = scripted_engine()
    for request_id, prompt in requests.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    return tokens_of(engine.run_until_idle())


REQUESTS = {"a": [1, 2, 3], "b": list(range(1, 30)), "c": [9] * 11}


@pytest.mark.parametrize("failing_call", [1, 2, 5, 12])
def test_a_dead_worker_loses_no_request_and_no_token(failing_call: int) -> None:
    engine = scripted_engine(failures={failing_call: WorkerDied("the worker ended with signal 9")})
    for request_id, prompt in REQUESTS.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    events, said = [], ""
    for step in engine.steps():
        events += step
        said = said or engine.message
    assert tokens_of(events) == plain_tokens(REQUESTS)
    assert "signal 9" in said
    assert "recomputed" in said
    totals = engine.snapshot().totals
    assert (totals.finished, totals.worker_restarts) == (3, 1)
    assert engine.state == "idle"


def test_a_worker_that_dies_again_and_again_is_a_failure_that_keeps_requests() -> None:
    failures = {n: WorkerDied("gone") for n in range(3, 3 + MAX_RESTARTS_IN_A_ROW + 1)}
    engine = scripted_engine(failures=failures)
    for request_id, prompt in REQUESTS.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    with pytest.raises(ExecutorError, match="requests are kept"):
        engine.run_until_idle()
    assert engine.state == "failed"
    assert engine.snapshot().num_preempted + engine.snapshot().num_waiting == 3
    assert engine.step() == []
    calls = executor_of(engine).calls
    assert engine.step() == []
    assert executor_of(engine).calls == calls  # a failed engine does not run
    engine.recover()
    engine.run_until_idle()
    assert engine.snapshot().totals.finished == 3
    assert engine.snapshot().message == ""


def test_a_failed_forward_pass_says_so_and_reset_is_a_way_out() -> None:
    engine = scripted_engine(failures={4: ExecutorError("the forward pass of 3 tokens failed: out of memory")})
    for request_id, prompt in REQUESTS.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    for _ in range(4):
        engine.step()
    picture = engine.snapshot()
    assert picture.state == "failed"
    assert "out of memory" in picture.message
    assert not engine.has_work()
    engine.add_request([1], GREEDY, request_id="while failed")
    engine.reset()
    assert {e.request_id for e in engine.step() if e.kind == "cancelled"} == {*REQUESTS, "while failed"}
    picture = engine.snapshot()
    assert (picture.state, picture.message, picture.totals) == ("idle", "", Totals())
    assert (picture.pool.live, picture.pool.cached) == (0, 0)
    assert (len(engine.records), picture.ended, picture.recent_requests) == (0, (), ())
    assert len(engine.generate([[1, 2]], GREEDY)[0].token_ids) == GREEDY.max_tokens


def test_tokens_for_the_wrong_rows_are_a_failure_not_a_crash() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2], GREEDY, request_id="a")
    executor = executor_of(engine)
    plain = executor.execute_model

    def wrong(output: SchedulerOutput) -> object:
        return dataclasses.replace(plain(output), sampled=(("somebody else", 3),))

    executor.execute_model = wrong  # type: ignore[method-assign, assignment]
    engine.step()
    assert engine.failed
    executor.execute_model = plain  # type: ignore[method-assign]
    engine.recover()
    assert len(tokens_of(engine.run_until_idle())["a"]) == GREEDY.max_tokens


def test_other_errors_are_not_swallowed() -> None:
    engine = scripted_engine(failures={1: ZeroDivisionError("a defect")})
    engine.add_request([1], GREEDY)
    with pytest.raises(ZeroDivisionError):
        engine.step()


def test_an_idle_engine_runs_nothing() -> None:
    engine = scripted_engine()
    assert engine.step() == []
    assert executor_of(engine).calls == 0
    assert engine.run_until_idle() == []


def test_too_few_steps_are_an_error_with_the_number_left() -> None:
    engine = scripted_engine()
    engine.add_request([1], LONG)
    engine.add_request([2], LONG)
    with pytest.raises(ExecutorError, match="2 requests are left after 5 steps"):
        engine.run_until_idle(max_steps=5)


def test_another_pool_recomputes_what_runs() -> None:
    engine = scripted_engine()
    for request_id, prompt in REQUESTS.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    events = [e for _ in range(6) for e in engine.step()]
    engine.set_cache(CacheConfig(block_size=8, num_blocks=40))
    events += engine.run_until_idle()
    assert tokens_of(events) == plain_tokens(REQUESTS)
    assert executor_of(engine).resizes == [(40, 8, 0)]
    picture = engine.snapshot()
    assert (picture.config.cache.block_size, picture.pool.total, picture.blocks.num_blocks) == (8, 40, 40)
    assert picture.info is not None
    assert picture.info.block_size == 8


def test_a_pool_that_the_executor_cannot_give_changes_nothing_and_loses_nothing() -> None:
    engine = scripted_engine()
    for request_id, prompt in REQUESTS.items():
        engine.add_request(prompt, LONG, request_id=request_id)
    events = [e for _ in range(6) for e in engine.step()]
    before = engine.config.cache
    executor_of(engine).refuse_resize = ConfigError("9000 KV blocks need 9 GiB, which is not there")
    with pytest.raises(ConfigError, match="9 GiB"):
        engine.set_cache(CacheConfig(block_size=4, num_blocks=9000))
    assert engine.config.cache == before
    assert executor_of(engine).resizes == [(before.num_blocks, before.block_size, 0)]
    events += engine.run_until_idle()
    assert tokens_of(events) == plain_tokens(REQUESTS)


def test_turning_prefix_caching_off_does_not_empty_the_pool() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2, 3], LONG)
    engine.step()
    engine.set_cache(dataclasses.replace(engine.config.cache, enable_prefix_caching=False))
    assert executor_of(engine).resizes == []
    engine.run_until_idle()
    assert engine.snapshot().totals.preemptions == 0


def test_settings_that_do_not_fit_together_are_refused_and_nothing_changes() -> None:
    engine = scripted_engine()
    before = engine.config
    with pytest.raises(ConfigError, match="swap"):
        engine.set_scheduler(SchedulerConfig(preemption_mode="swap"))  # type: ignore[arg-type]
    assert engine.config == before
    engine.set_scheduler(SchedulerConfig(max_num_seqs=3))
    assert engine.config.scheduler.max_num_seqs == 3
    assert engine.snapshot().config.scheduler.max_num_seqs == 3


def test_commands_for_unknown_requests() -> None:
    engine = scripted_engine()
    with pytest.raises(UnknownRequest, match="nobody"):
        engine.cancel("nobody")
    with pytest.raises(UnknownRequest, match="nobody"):
        engine.set_priority("nobody", 3)


def test_a_cancel_is_among_the_events_of_the_next_step() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2], LONG, request_id="a")
    engine.step()
    engine.cancel("a")
    assert engine.snapshot().num_running == 0
    assert engine.has_work()
    assert [(e.request_id, e.kind) for e in engine.step()] == [("a", "cancelled")]
    assert not engine.has_work()


def test_the_story_of_a_request_outlives_it() -> None:
    engine = scripted_engine()
    engine.add_request([1, 2], GREEDY, request_id="a")
    engine.step()
    live = engine.story("a")
    assert live is not None
    assert [e.kind for e in live.events][:2] == ["submitted", "admitted"]
    engine.run_until_idle()
    whole = engine.story("a")
    assert whole is not None
    assert (whole.status, whole.events[-1].kind) == ("finished", "finished")
    assert any("finished" in line for line in whole.lines())
    assert engine.story("nobody") is None


def test_arrivals_before_now_count_the_wait() -> None:
    clock = VirtualClock(10.0)
    engine = scripted_engine(clock=clock)
    engine.add_request([1], GREEDY, arrival_time_s=7.5)
    engine.run_until_idle()
    record = engine.snapshot().recent_requests[0]
    assert (record.arrival_s, record.ttft_s) == (7.5, 2.5)


def test_a_quota_of_tokens_passes_virtual_time_instead_of_spinning() -> None:
    clock = VirtualClock()
    engine = scripted_engine(clock=clock, tenants=(TenantConfig("slow", max_tokens_per_s=5.0),))
    for _ in range(3):
        engine.add_request([1] * 10, SamplingParams(max_tokens=5, ignore_eos=True), tenant="slow", use_prefix_cache=False)
    engine.run_until_idle(max_steps=200)
    assert engine.snapshot().totals.finished == 3
    assert 4.0 < clock.now() < 20.0


def test_a_snapshot_has_rows_of_every_kind() -> None:
    engine = scripted_engine(max_num_seqs=2, num_blocks=64)
    for number in range(5):
        engine.add_request([1 + number, 2, 3], LONG, request_id=f"r-{number}", source="scenario", slo=SLO(ttft_s=100.0))
    for _ in range(3):
        engine.step()
    engine.cancel("r-1")
    picture = engine.snapshot(wall_s=123.0, state="paused")
    assert (picture.state, picture.wall_time_s, picture.time_s) == ("paused", 123.0, 3.0)
    assert [r.request_id for r in picture.running] == ["r-0"]
    assert [r.request_id for r in picture.waiting] == ["r-2", "r-3", "r-4"]
    assert (picture.num_running, picture.num_waiting) == (1, 3)
    head = picture.waiting[0]
    assert "seat" in head.why.lower() or head.why
    assert head.age_s == 3.0
    running = picture.running[0]
    assert (running.scheduled_tokens, running.is_prefill, running.output_tokens) == (1, False, 3)
    assert running.block_ids == engine.scheduler.kv.block_ids("r-0")
    assert len(running.text_tail) == 3
    assert running.source == "scenario"
    assert picture.ended[0].status == "cancelled"
    assert picture.ended[0].source == "scenario"
    hues = {r.hue for r in (*picture.running, *picture.waiting)}
    assert len(hues) == 4
    assert all(0 <= h < 360 for h in hues)
    later = engine.snapshot()
    assert later.revision == picture.revision + 1
    engine.run_until_idle()


def test_kept_rows_of_waiting_requests_follow_changes() -> None:
    clock = VirtualClock()
    engine = scripted_engine(clock=clock, max_num_seqs=1)
    engine.add_request([1], LONG)
    engine.add_request([2], LONG, request_id="w", priority=4)
    engine.step()
    first = engine.snapshot(wall_s=10.0).waiting[0]
    clock.advance(0.2)
    assert engine.snapshot(wall_s=10.2).waiting[0] is first
    assert engine.snapshot(wall_s=10.2, state="paused").waiting[0].age_s == pytest.approx(0.2), "exact at rest"
    assert engine.snapshot().waiting[0].age_s == pytest.approx(0.2), "a single picture is exact"
    engine.set_priority("w", 2)
    assert engine.snapshot(wall_s=10.4).waiting[0].priority == 2
    clock.advance(1.0)
    assert engine.snapshot(wall_s=11.4).waiting[0].age_s == pytest.approx(1.2)
    engine.cancel("w")
    engine.add_request([3, 3], LONG, request_id="w", priority=2)
    assert engine.snapshot().waiting[0].prompt_tokens == 2


def test_a_stream_of_pictures_reads_queue_and_blocks_less_often_and_is_exact_at_rest() -> None:
    engine = scripted_engine(max_num_seqs=2)
    for number in range(4):
        engine.add_request([number + 1] * 5, SamplingParams(max_tokens=4, ignore_eos=True), request_id=f"w{number}")
    engine.step()
    first = engine.snapshot(wall_s=10.0)
    assert [r.request_id for r in first.waiting] == ["w2", "w3"]
    for _ in range(4):
        engine.step()
    soon = engine.snapshot(wall_s=10.05)
    assert soon.blocks is first.blocks
    assert [r.request_id for r in soon.running] == ["w2", "w3"]
    assert soon.waiting == ()  # nobody is shown twice
    assert engine.snapshot(wall_s=10.11).blocks == engine.scheduler.block_map()
    engine.step()
    assert engine.snapshot(wall_s=10.12, state="paused").blocks == engine.scheduler.block_map()
    assert engine.snapshot().blocks == engine.scheduler.block_map()
    engine.run_until_idle()
    rest = engine.snapshot(wall_s=10.13)
    assert (rest.state, rest.blocks.owners, rest.pool.live) == ("idle", (), 0)


def test_preemptions_are_kept_newest_first() -> None:
    engine = scripted_engine(num_blocks=8, enable_prefix_caching=False)
    for number in range(4):
        engine.add_request([number + 1] * 6, SamplingParams(max_tokens=14, ignore_eos=True))
    seen: list[Preemption] = []
    for _ in engine.steps():
        if engine.scheduler.step and engine.snapshot().preemptions[:1] != tuple(seen[-1:]):
            seen = list(reversed(engine.snapshot().preemptions))
    assert engine.snapshot().totals.preemptions == len(engine.snapshot().preemptions) > 0
    steps = [p.step for p in engine.snapshot().preemptions]
    assert steps == sorted(steps, reverse=True)


def test_utilisation_appears_with_the_ceilings() -> None:
    clock = VirtualClock()
    engine = scripted_engine(clock=clock)
    assert engine.snapshot().kpis.mfu is None
    engine.telemetry.ceilings = RooflineCeilings("test", 1e12, 2e10, None, 1, "float32")
    engine.add_request([1, 2, 3], LONG)
    executor = executor_of(engine)
    plain = executor.execute_model

    def timed(output: SchedulerOutput) -> object:
        clock.advance(0.01)
        return plain(output)

    executor.execute_model = timed  # type: ignore[method-assign, assignment]
    for _ in range(5):
        engine.step()
    kpis = engine.snapshot().kpis
    record = engine.latest_record
    assert record is not None
    assert kpis.mfu == pytest.approx(sum(r.useful_flops for r in engine.records) / (0.05 * 1e12))
    assert kpis.mbu == pytest.approx(sum(r.useful_bytes for r in engine.records) / (0.05 * 2e10))
    assert kpis.mbu_ceiling == "DRAM"
    assert kpis.output_tokens_per_s == pytest.approx(100.0)
    engine.run_until_idle()
    assert engine.snapshot().kpis.mfu == 0.0


POOL = PoolCounts(10, 0, 0, 10)


@pytest.mark.parametrize(
    ("output", "events", "law"),
    [
        (SchedulerOutput(1, ("a",), (9,), (0,), (True,), (True,)), (), "budget"),
        (SchedulerOutput(1, ("a", "b", "c"), (1,) * 3, (0,) * 3, (True,) * 3, (False,) * 3), (), "seats"),
        (SchedulerOutput(1, ("a", "a"), (1,) * 2, (0,) * 2, (True,) * 2, (False,) * 2), (), "twice"),
        (SchedulerOutput(1, ("a",), (0,), (0,), (True,), (True,)), (), "no token"),
        (SchedulerOutput(1, ("a",), (1,), (), (True,), (True,)), (), "column"),
        (
            SchedulerOutput(1, ("a",), (1,), (0,), (True,), (True,), preemptions=(Preemption(1, "a", "b", 1, 1, 0, "memory"),)),
            (),
            "both scheduled and preempted",
        ),
        (
            SchedulerOutput(1, ("a",), (1,), (0,), (False,), (True,)),
            (RequestEvent("a", "token", 0.0, 1, 5),),
            "not planned",
        ),
        (
            SchedulerOutput(1, ("a",), (1,), (0,), (True,), (False,)),
            (RequestEvent("a", "token", 0.0, 1, 5), RequestEvent("a", "token", 0.0, 1, 6)),
            "two tokens",
        ),
    ],
)
def test_a_step_that_breaks_a_law_is_caught(output: SchedulerOutput, events: tuple[RequestEvent, ...], law: str) -> None:
    with pytest.raises(InvariantError, match=law):
        EngineLaws().on_step(output, events, budget_tokens=8, max_num_seqs=2)


def test_books_that_break_a_law_are_caught() -> None:
    with pytest.raises(InvariantError, match="2 submitted"):
        EngineLaws().on_books(Totals(submitted=2, finished=1), 0, 0, 0, POOL)
    with pytest.raises(InvariantError, match="blocks are live"):
        EngineLaws().on_books(Totals(), 0, 0, 0, PoolCounts(10, 2, 0, 8))
    with pytest.raises(InvariantError, match="are not 10"):
        EngineLaws().on_books(Totals(), 0, 0, 0, PoolCounts(10, 0, 3, 8))
    laws = EngineLaws()
    laws.on_books(Totals(submitted=3, finished=3), 0, 0, 0, POOL)
    with pytest.raises(InvariantError, match="submitted fell from 3 to 2"):
        laws.on_books(Totals(submitted=2, finished=2), 0, 0, 0, POOL)


def test_an_engine_that_is_stuck_without_a_cause_is_caught() -> None:
    laws = EngineLaws()
    silent = SchedulerOutput(1, num_waiting=1)
    for _ in range(MAX_SILENT_STEPS):
        laws.on_step(silent, (), budget_tokens=8, max_num_seqs=2)
    with pytest.raises(InvariantError, match="does not say why"):
        laws.on_step(silent, (), budget_tokens=8, max_num_seqs=2)


def test_other_kernels_that_take_over_are_named_and_their_steps_priced_by_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine()
    before = engine.info
    coded = dataclasses.replace(before, kernels="coded", coded_tokens=8, coded_bytes_read=before.weight_bytes_read // 2)
    engine.add_request([1, 2, 3], LONG)
    engine.step()
    monkeypatch.setattr(type(executor_of(engine)), "info", coded)
    engine.step()
    plain, small = (r.weight_bytes for r in engine.records)
    snapshot = engine.snapshot()
    assert snapshot.info is coded
    assert small < 0.6 * plain
    engine.cancel(next(iter(engine.scheduler.requests)))
    engine.add_request(list(range(1, 30)), LONG)
    engine.step()
    assert engine.records[-1].weight_bytes > plain, "more tokens than the coded copy is read for"
