"""What is done by columns gives what is done row by row: booking, texts, rows of a picture, latencies, the flat batch."""

from __future__ import annotations

import pickle
import random
from itertools import repeat

import numpy as np
import pytest

from core.engine import Engine
from core.errors import ExecutorError
from core.latency import LatencyTracker
from core.outputs import NewRequestData, RequestEvent, SchedulerOutput
from core.records import RequestRecord
from core.request import SamplingParams
from core.runtime.backend import Best
from core.runtime.input_batch import InputBatch, RowCalls
from core.runtime.kernels.compiler import unavailable_reason
from core.runtime.sampler import Sampler, SamplingBatch, likeliest
from core.slots import by_columns
from core.snapshot import RequestView
from core.snapshot_rows import hue_of, live_row
from tests.engine_cases import EOS, scripted_engine

PIECES = ("a", "b", "가", "é", "😀", " ", "END")


def _sampling(rng: random.Random) -> SamplingParams:
    most = rng.randint(1, 24)
    return SamplingParams(
        max_tokens=most,
        min_tokens=rng.randint(0, most) if rng.random() < 0.3 else 0,
        stop=tuple(rng.sample(("END", "ab", "é "), rng.randint(1, 2))) if rng.random() < 0.25 else (),
        stop_token_ids=(ord("b"),) if rng.random() < 0.15 else (),
        ignore_eos=rng.random() < 0.5,
    )


def _output(rng: random.Random) -> list[int]:
    """Bytes of a text, some of them lost, so that characters are cut and bytes belong to none; now and then the end token."""
    data = "".join(rng.choices(PIECES, k=20)).encode()
    return [EOS if rng.random() < 0.02 else b for b in data if rng.random() < 0.95]


def _rows_one_by_one(engine: Engine) -> Engine:
    engine.scheduler.text_rows = None
    latency = engine.telemetry.latency

    def on_step_tokens(ids: tuple[str, ...], time_s: float) -> None:
        latency.on_tokens([(i, time_s) for i in ids])

    latency.on_step_tokens = on_step_tokens  # type: ignore[method-assign]
    return engine


def _expected_rows(engine: Engine, output: SchedulerOutput | None) -> list[RequestView]:
    planned = {}
    if output is not None:
        planned = {i: (n, p) for i, n, p in zip(output.request_ids, output.num_scheduled_tokens, output.is_prefill, strict=True)}
    rows = []
    for request in engine.scheduler.running:
        tokens, prefill = planned.get(request.request_id, (0, False))
        ids, tail = engine.scheduler.kv.block_ids(request.request_id), engine._text.tail(request.request_id)
        hue, source = hue_of(request.request_id), engine._books.sources[request.request_id]
        rows.append(live_row(request, engine.clock.now(), hue, source, tokens, prefill, ids, "", tail))
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_steps_by_columns_and_row_by_row_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"r-{n}" for n in range(14)]
    script = {name: _output(rng) for name in names}
    knobs = {"num_blocks": rng.choice((18, 64)), "max_num_seqs": 9, "max_num_batched_tokens": 24, "batch_policy": "chunked"}
    columns, rows = scripted_engine(script, **knobs), _rows_one_by_one(scripted_engine(script, **knobs))
    coming = [(name, "".join(rng.choices(PIECES, k=3)).encode()[: rng.randint(1, 12)], _sampling(rng)) for name in names]
    steps, by_columns_seen = 0, 0
    pictures = []
    while coming or columns.has_work():
        for _ in range(rng.choice((0, 0, 1, 3))):
            if coming:
                name, prompt, sampling = coming.pop()
                for engine in (columns, rows):
                    engine.add_request(list(prompt or b"x"), sampling, request_id=name)
        if rng.random() < 0.1 and columns.scheduler.requests:
            victim = rng.choice(sorted(columns.scheduler.requests))
            for engine in (columns, rows):
                engine.cancel(victim)
        first, second = columns.step(), rows.step()
        assert first == second
        by_columns_seen += sum(e.kind == "token" for e in first) > 3
        expected = _expected_rows(rows, rows._last_output)
        picture = columns.snapshot()
        assert list(picture.running) == expected == list(rows.snapshot().running)
        assert picture.kpis == rows.snapshot().kpis
        pictures.append((picture, expected, columns.scheduler.block_map()))
        steps += 1
        assert steps < 2000
    assert by_columns_seen > 5
    for name in names:
        assert columns.story(name) == rows.story(name)
    assert columns.telemetry.requests == rows.telemetry.requests
    for picture, expected, blocks in pictures:  # looked at only now: what has happened since must not show
        assert list(picture.running) == expected
        assert picture.blocks == blocks
        assert pickle.loads(pickle.dumps(picture.blocks)) == blocks


def test_a_map_on_demand_is_the_map_made_at_once() -> None:
    engine = scripted_engine()
    engine.add_request([1] * 9, SamplingParams(max_tokens=6, ignore_eos=True))
    engine.step()
    later, now = engine.scheduler.block_map_on_demand(), engine.scheduler.block_map()
    engine.run_until_idle()
    assert (later.num_blocks, later.block_size, later.owners) == (now.num_blocks, now.block_size, now.owners)
    assert (later.owner, later.fill, later.refs, later.flags, later.last_use) == (
        now.owner, now.fill, now.refs, now.flags, now.last_use,
    )  # fmt: skip
    assert later == now
    assert now == later
    assert (hash(later), repr(later)) == (hash(now), repr(now))
    assert later != engine.scheduler.block_map()


def _record(request_id: str) -> RequestRecord:
    return RequestRecord(request_id, "t", 0, 0.0, 9.0, "length", 1, 3, 0, 0, 0.0, 1.0, 1.0, 9.0, 1.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_gaps_of_a_batch_are_those_of_its_requests(seed: int) -> None:
    rng = random.Random(seed)
    together, single = LatencyTracker(), LatencyTracker()
    batch: list[str] = []
    time_s = 0.0
    for _ in range(60):
        time_s += rng.choice((0.1, 0.25))
        if rng.random() < 0.3:
            gone = rng.choice(batch) if batch and rng.random() < 0.5 else None
            if gone:
                batch.remove(gone)
                for tracker in (together, single):
                    tracker.on_end(_record(gone))
            new = gone or f"r{rng.randrange(1000)}"  # an id may come back at once
            if new not in batch:
                batch.append(new)
                for tracker in (together, single):
                    tracker.on_arrival(new, time_s)
        served = tuple(batch if rng.random() < 0.8 else rng.sample(batch, len(batch) // 2))
        together.on_step_tokens(served, time_s)
        single.on_tokens([(i, time_s) for i in served])
    assert together.itl.percentiles() == single.itl.percentiles()
    assert together.ttft.percentiles() == single.ttft.percentiles()


def row_calls(compiled: bool) -> RowCalls | None:
    if not compiled:
        return None
    if unavailable_reason():
        pytest.skip(unavailable_reason())
    from core.runtime.kernels.rows import compiled_rows

    return compiled_rows()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_a_decode_step_is_planned_as_any_other(rows: int, compiled: bool) -> None:
    rng = random.Random(rows)
    batch = InputBatch(4, 500, vocab_size=100, max_model_len=64)
    batch.calls = row_calls(compiled)
    free = iter(rng.sample(range(500), 500))
    lengths = [rng.randint(2, 20) for _ in range(rows)]
    for row, length in enumerate(lengths):
        blocks = tuple(next(free) for _ in range(-(-length // 4)))
        tokens = tuple(rng.randrange(100) for _ in range(length))
        batch.add(NewRequestData(f"r{row}", tokens, length, blocks, SamplingParams(), 1))
    order = rng.sample(range(rows), rows)
    ids, starts = tuple(f"r{r}" for r in order), tuple(lengths[r] - 1 for r in order)
    step = SchedulerOutput(1, ids, (1,) * rows, starts, (True,) * rows, (False,) * rows)
    held = batch._rows(ids)
    quick = batch._decode(step, held, np.array(starts))
    assert quick is not None
    counts, all_sample = np.ones(rows, np.int64), np.ones(rows, bool)
    plain = batch._ragged(step, held, counts, np.array(starts), np.array(starts) + 1, all_sample)
    for name in (
        "token_ids",
        "positions",
        "slot_mapping",
        "row_of",
        "query_start",
        "context_lens",
        "block_tables",
        "logits_indices",
    ):
        one, other = getattr(quick, name), getattr(plain, name)
        assert (one.dtype, one.flags.c_contiguous) == (other.dtype, True), name
        np.testing.assert_array_equal(one, other)
    planned = batch.plan(step)
    assert planned.sample_ids == ids
    np.testing.assert_array_equal(planned.sample_rows, held)
    for wrong in (tuple(s + 1 for s in starts), tuple(s - 1 for s in starts)):
        with pytest.raises(ExecutorError, match="plans request"):
            batch.plan(SchedulerOutput(1, ids, (1,) * rows, wrong, (True,) * rows, (False,) * rows))


def test_tokens_are_put_back_alike_and_where_there_is_no_room_the_store_grows() -> None:
    stores = [InputBatch(4, 50, vocab_size=100, max_model_len=64, tokens=4) for _ in range(2)]
    stores[1].calls = row_calls(compiled=True)
    rows = np.array([2, 0])
    for store in stores:
        for number in range(3):
            store.add(NewRequestData(f"r{number}", (7, 8), 2, (number,), SamplingParams(), 1))
        for step in range(6):
            store.commit(rows, np.array([step, 10 + step]))
    assert stores[1].token_ids.shape[1] >= 8
    for row in range(3):
        count = 2 if row == 1 else 8
        assert [int(s.num_tokens[row]) for s in stores] == [count, count]
        np.testing.assert_array_equal(stores[0].token_ids[row, :count], stores[1].token_ids[row, :count])


def test_only_rows_that_want_the_likeliest_token_are_plain() -> None:
    batch = InputBatch(4, 50, vocab_size=100, max_model_len=64)
    wishes = [{}, {"temperature": 0.7}, {"logprobs": 2}, {"max_tokens": 5, "min_tokens": 2}, {"temperature": 1.0, "top_k": 1}]
    for number, (wish, plain) in enumerate(zip(wishes, (True, False, False, False, True), strict=True)):
        batch.add(NewRequestData(f"r{number}", (1, 2), 2, (number,), SamplingParams(**wish), 1))
        assert batch.all_plain() is plain
        batch.drop((f"r{number}",))
        assert batch.all_plain()


def test_the_likeliest_token_is_what_the_sampler_gives() -> None:
    import torch

    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    values, ids = logits.max(dim=1)
    best = Best(ids.numpy(), values.numpy(), True)
    names = tuple("abcdefg")
    batch = SamplingBatch(names, [SamplingParams()] * 7, np.ones(7, np.uint64), np.zeros(7, np.int64))
    np.testing.assert_array_equal(likeliest(best, names), Sampler(()).sample(logits, batch)[0])
    best.values[3] = np.nan
    with pytest.raises(ExecutorError, match="the logits of d are not finite"):
        likeliest(best._replace(finite=False), names)


def test_records_by_columns_are_those_made_one_by_one() -> None:
    build = by_columns(RequestEvent)
    made = build(
        2,
        ("a", "b"),
        repeat("token"),
        (1.0, 2.0),
        repeat(3),
        [7, 8],
        ("x", "y"),
        repeat(None),
        repeat(""),
        repeat(None),
    )
    assert made == [RequestEvent("a", "token", 1.0, 3, 7, "x"), RequestEvent("b", "token", 2.0, 3, 8, "y")]
    with pytest.raises(TypeError, match="9 fields, 1 columns"):
        build(2, ("a", "b"))
    with pytest.raises(ValueError, match="column 0 of RequestEvent has 1 values for 2 records"):
        build(2, ("a",), *[repeat(None)] * 8)
