"""Counts, times and events of the scheduler: tokens of a step, reasons of an end, gauges at idle, times across preemption."""

from __future__ import annotations

import itertools

import pytest

from core.config import replace_knobs
from core.errors import ExecutorError, InvariantError, RefusalReason, RequestRefused
from core.outputs import ModelRunnerOutput
from core.request import SLO, FinishReason, RequestStatus, SamplingParams
from tests.scheduler_helpers import Driver, FakeRunner, create_request, create_requests, create_scheduler, distinct_tokens

EOS = 5


# -- usage, live and cached (faults 20, 23) --------------------------------------------------------------


def test_usage_is_a_share_and_cached_blocks_are_not_live() -> None:
    driver = Driver(create_scheduler(num_blocks=32, block_size=4))
    for number in range(51):
        driver.add(create_request(f"r{number}", 9, 3))
        while driver.scheduler.has_work():
            driver.step()
            assert 0.0 <= driver.scheduler.kv.counts().usage <= 1.0
        counts = driver.scheduler.kv.counts()
        assert (counts.live, counts.live + counts.cached + counts.free) == (0, 32)
    assert counts.cached > 24
    assert driver.scheduler.totals().finished == 51


# -- rows that are not scheduled (fault 29) --------------------------------------------------------------


@pytest.mark.parametrize(("policy", "budget"), [("chunked", 8), ("prefill_first", 61), ("separate", 64)])
def test_an_output_grows_exactly_in_the_steps_in_which_it_was_planned_whole(policy: str, budget: int) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=budget, block_size=4, num_blocks=256, batch_policy=policy))
    requests = [create_request(f"r{n}", 60 if n % 4 == 1 else 4, 40) for n in range(14)]
    driver.add(*requests)
    skipped = 0
    while driver.scheduler.has_work():
        if len(driver.outputs) == 20 and policy == "chunked":
            driver.scheduler.set_config(replace_knobs(driver.scheduler.config, max_num_batched_tokens=3), driver.now)
        before = {r.request_id: r.num_output_tokens for r in requests}
        running = {r.request_id for r in driver.scheduler.running if r.num_output_tokens}
        out = driver.step()
        samples = dict(zip(out.request_ids, out.samples, strict=True))
        skipped += len(running - set(out.request_ids))
        for request in requests:
            grew = request.num_output_tokens - before[request.request_id]
            assert grew == samples.get(request.request_id, False)
    assert skipped > 0, "the budget never made a decode wait"


# -- reasons and counts at the limit (faults 38, 40) -----------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "limit", "fields", "reason", "count"),
    [
        ([9, 9, 9, 9, EOS], 5, {}, FinishReason.STOP, 5),
        ([9, 9, 9, 9, 9], 5, {}, FinishReason.LENGTH, 5),
        ([9], 1, {}, FinishReason.LENGTH, 1),
        ([EOS], 5, {}, FinishReason.STOP, 1),
        ([EOS] * 5, 5, {"ignore_eos": True}, FinishReason.LENGTH, 5),
        ([9, 8], 5, {"stop_token_ids": (8,)}, FinishReason.STOP, 2),
        ([9, 8], 5, {"stop_token_ids": (8,), "ignore_eos": True}, FinishReason.STOP, 2),
        ([EOS, EOS, EOS], 5, {"min_tokens": 3}, FinishReason.STOP, 3),
        ([EOS] * 4, 4, {"min_tokens": 4}, FinishReason.STOP, 4),
    ],
)
def test_reason_and_count(tokens: list[int], limit: int, fields: dict, reason: FinishReason, count: int) -> None:
    scheduler = create_scheduler(eos=(EOS,))
    driver = Driver(scheduler, FakeRunner(scheduler, choose=lambda _, number, __: tokens[number]))
    request = create_request("R", 4, sampling=SamplingParams(max_tokens=limit, **fields))
    driver.add(request)
    driver.run()
    assert (request.finish_reason, request.num_output_tokens, request.status) == (reason, count, RequestStatus.FINISHED)
    assert sum(e.kind == "token" for e in driver.events) == count == driver.scheduler.totals().output_tokens
    (end,) = [e for e in driver.events if e.kind == "finished"]
    assert end.finish_reason is reason


@pytest.mark.parametrize(("stop_at", "limit", "reason", "count"), [(5, 5, FinishReason.STOP, 5), (6, 5, FinishReason.LENGTH, 5)])
def test_a_stop_string_is_looked_at_before_the_length(stop_at: int, limit: int, reason: FinishReason, count: int) -> None:
    driver = Driver(create_scheduler())
    asked: list[int] = []

    def text_stop(request, token: int) -> bool:
        asked.append(token)
        return len(asked) == stop_at

    driver.scheduler.text_stop = text_stop
    request = create_request("R", 4, limit)
    driver.add(request)
    driver.run()
    assert (request.finish_reason, request.num_output_tokens) == (reason, count)
    assert asked == request.output_token_ids, "a decoder's state needs every token"


@pytest.mark.parametrize("limit", [0, -1, None, 1.5, True])
def test_an_output_limit_that_makes_no_sense_is_refused(limit: object) -> None:
    driver = Driver(create_scheduler())
    with pytest.raises(RequestRefused, match="max_tokens") as refused:
        driver.add(create_request("R", 4, sampling=SamplingParams(max_tokens=limit)))
    assert refused.value.reason is RefusalReason.BAD_SAMPLING
    assert driver.scheduler.kv.counts().live == 0


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"prompt": ()}, RefusalReason.EMPTY_PROMPT, "the prompt is empty"),
        ({"prompt": (1, -1)}, RefusalReason.BAD_TOKEN, "token -1; valid ids are 0 to 996"),
        ({"prompt": (1, 997)}, RefusalReason.BAD_TOKEN, "token 997; valid ids are 0 to 996"),
        ({"prompt": (1, True)}, RefusalReason.BAD_TOKEN, "holds True"),
        ({"prompt": (1, 2.0)}, RefusalReason.BAD_TOKEN, r"holds 2\.0"),
        ({"tenant": ""}, RefusalReason.BAD_FIELD, "tenant is ''"),
        ({"priority": 1.5}, RefusalReason.BAD_FIELD, r"priority is 1\.5"),
        ({"priority": 10**10}, RefusalReason.BAD_FIELD, "priority is 10000000000"),
        ({"cache_salt": 7}, RefusalReason.BAD_FIELD, "cache_salt is 7"),
        ({"deadline_s": float("nan")}, RefusalReason.BAD_FIELD, "deadline_s is nan"),
        ({"at": float("inf")}, RefusalReason.BAD_FIELD, "arrival_time_s is inf"),
        ({"slo": SLO(ttft_s=0.0)}, RefusalReason.BAD_FIELD, "SLO ttft_s is 0"),
        ({"slo": SLO(itl_s=-1.0)}, RefusalReason.BAD_FIELD, "SLO itl_s is -1"),
    ],
)
def test_bad_fields_are_refused_with_what_was_found(fields: dict, reason: RefusalReason, words: str) -> None:
    driver = Driver(create_scheduler())
    fields = {"prompt": 4, **fields}
    with pytest.raises(RequestRefused, match=words) as refused:
        driver.add(create_request("R", **fields))
    assert refused.value.reason is reason
    (ended,) = driver.scheduler.pop_ended()
    assert (ended.status, ended.story[-1].kind) == (RequestStatus.REFUSED, "refused")
    assert driver.scheduler.totals().refused == 1
    driver.scheduler.check_invariants()


def test_a_full_queue_refuses_with_its_limit() -> None:
    driver = Driver(create_scheduler(max_waiting=2))
    driver.add(*create_requests(2, 4))
    with pytest.raises(RequestRefused, match="2 requests wait already, the limit is max_waiting = 2") as refused:
        driver.add(create_request("third", 4))
    assert refused.value.reason is RefusalReason.QUEUE_FULL
    driver.step()
    driver.add(create_request("third", 4))
    driver.run()


# -- gauges at idle (fault 43) ---------------------------------------------------------------------------


def test_gauges_fall_at_once_when_everything_is_cancelled_between_steps() -> None:
    driver = Driver(create_scheduler(num_blocks=256, block_size=4, max_num_seqs=20))
    driver.add(*create_requests(25, 6, 20))
    driver.steps(3)
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (20, 5)
    for rid in list(driver.scheduler.requests):
        driver.abort(rid)
    counts = driver.scheduler.kv.counts()
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting, counts.live, driver.scheduler.kv.slots_used()) == (
        0,
        0,
        0,
        0,
    )
    assert not driver.scheduler.has_work()
    assert set(driver.step().released_ids) == {f"r{n}" for n in range(20)}, "the runner is told at the next step"


# -- times across a preemption (fault 44) ----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_first_token_stays_and_the_gap_is_one_long_one(mode: str) -> None:
    driver = Driver(
        create_scheduler(
            num_blocks=32, block_size=4, max_num_seqs=1, queue_policy="priority", preemption_mode=mode, num_swap_blocks=16
        )
    )
    b = create_request("B", 4, 12, priority=5)
    driver.add(b)
    driver.steps(5)
    first, so_far = b.first_token_time_s, len(b.token_times_s)
    driver.add(create_request("high", 4, 15, priority=0, at=driver.now))
    driver.run()
    assert b.first_token_time_s == first == 1.0
    (span,) = b.preempted_spans_s
    assert span == (5.0, 20.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(b.token_times_s)]
    assert max(gaps) == gaps[so_far - 1] == span[1] - span[0] + 1.0
    assert b.finished_time_s == b.token_times_s[-1] == 12 + 15
    kinds = [e.kind for e in b.story]
    assert kinds.index("preempted") < kinds.index("resumed") < kinds.index("finished")
    assert (b.admitted_time_s, b.num_preemptions) == (0.0, 1)


# -- tokens of a step (fault 46) -------------------------------------------------------------------------


def test_chunks_count_in_the_step_in_which_they_run() -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=4))
    request = create_request("R", 10, 2)
    driver.add(request)
    assert [out.total_tokens for out in driver.run()] == [4, 4, 2, 1]
    totals = driver.scheduler.totals()
    assert (totals.prompt_tokens, totals.output_tokens) == (10, 2)
    assert [e.value for e in request.story if e.kind == "chunk"] == [4, 4, 2]


def test_prompt_tokens_are_computed_or_hits_at_each_admission() -> None:
    driver = Driver(create_scheduler(block_size=4, max_num_batched_tokens=6))
    for name in ("a", "b"):
        driver.add(create_request(name, distinct_tokens("same", 15), 3))
        outs = driver.run()
        computed = sum(n for out in outs for n, p in zip(out.num_scheduled_tokens, out.is_prefill, strict=True) if p)
        assert computed == {"a": 15, "b": 15 - 12}[name]
    totals = driver.scheduler.totals()
    assert (totals.queried_tokens, totals.cached_tokens, totals.prompt_tokens) == (30, 12, 18)


# -- what the executor may answer ------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(), (("other", 1),), (("R", 1), ("R", 2))])
def test_tokens_for_other_rows_than_those_planned_are_an_error(wrong: tuple[tuple[str, int], ...]) -> None:
    driver = Driver(create_scheduler())
    driver.add(create_request("R", 4))
    out = driver.scheduler.schedule(0.0)
    with pytest.raises(ExecutorError, match="sampled for 1 rows"):
        driver.scheduler.update_from_output(out, ModelRunnerOutput(out.step, wrong), 1.0)
    driver.scheduler.update_from_output(out, driver.runner.execute_model(out), 1.0)
    driver.run()


def test_a_decision_is_booked_once_and_before_the_next() -> None:
    driver = Driver(create_scheduler())
    driver.add(create_request("R", 4))
    out = driver.scheduler.schedule(0.0)
    with pytest.raises(InvariantError, match="decided and not booked"):
        driver.scheduler.schedule(0.0)
    result = driver.runner.execute_model(out)
    driver.scheduler.update_from_output(out, result, 1.0)
    with pytest.raises(InvariantError, match="not the decision"):
        driver.scheduler.update_from_output(out, result, 1.0)


def test_events_tell_the_whole_life_in_order() -> None:
    driver = Driver(create_scheduler(num_blocks=6, block_size=4))
    driver.add(create_request("A", 8, 12), create_request("B", 8, 12))
    driver.run()
    kinds = [e.kind for e in driver.events if e.request_id == "B"]
    assert kinds[0] == "admitted"
    assert kinds[-1] == "finished"
    assert kinds.count("token") == 12
    assert kinds.count("preempted") == kinds.count("resumed") >= 1
    assert [e.time_s for e in driver.events if e.request_id == "B"] == sorted(
        e.time_s for e in driver.events if e.request_id == "B"
    )
