"""FLOPs and bytes of a step: against brute force, against closed forms, and against its own conventions."""

from __future__ import annotations

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cost_model import CostModel, StepComposition, StepSums, attended_tokens, experts_touched, parameter_bytes, step_cost
from core.errors import ConfigError
from core.model_spec import SMOLLM2_135M, TINY
from core.models_catalog import model_named
from core.outputs import SchedulerOutput

rows = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 200), st.booleans()), min_size=1, max_size=12)


def composition(columns: list[tuple[int, int, bool]]) -> StepComposition:
    queries, before, samples = zip(*columns, strict=True)
    return StepComposition(queries, before, samples)


@given(rows, st.one_of(st.none(), st.integers(1, 260)))
def test_sums_equal_a_count_of_every_query_and_key(columns: list[tuple[int, int, bool]], window: int | None) -> None:
    sums = composition(columns).sums(window)
    attended = read = 0
    for queries, before, _ in columns:
        seen: set[int] = set()
        for position in range(before, before + queries):
            keys = range(0 if window is None else max(position + 1 - window, 0), position + 1)
            attended += len(keys)
            seen.update(keys)
        read += len(seen)
    assert sums == StepSums(len(columns), sum(q for q, _, _ in columns), sum(s for _, _, s in columns), read, attended)


@given(st.integers(1, 50), st.integers(0, 100), st.one_of(st.none(), st.integers(1, 160)))
def test_chunks_attend_to_what_the_whole_prompt_attends_to(tokens: int, before: int, window: int | None) -> None:
    whole = attended_tokens(tokens, before, window)
    assert whole == sum(attended_tokens(1, before + t, window) for t in range(tokens))


@given(rows, rows)
def test_cost_never_falls_with_more_work(few: list[tuple[int, int, bool]], more: list[tuple[int, int, bool]]) -> None:
    part = step_cost(TINY, composition(few))
    whole = step_cost(TINY, composition(few + more))
    assert whole.flops > part.flops
    assert whole.moved_bytes > part.moved_bytes
    assert whole.moved_bytes < part.moved_bytes + step_cost(TINY, composition(more)).moved_bytes  # weights are read once


def test_columns_are_those_of_the_decision() -> None:
    output = SchedulerOutput(
        7, ("a", "b"), (5, 1), (0, 9), (False, True), (True, False), swap_in=((0, 1),), swap_out=((2, 3), (4, 5)),
        copy_blocks=((1, 2),),
    )  # fmt: skip
    found = StepComposition.from_scheduler_output(output, block_bytes=100.0)
    assert found == StepComposition((5, 1), (0, 9), (False, True), swap_bytes=300.0, copy_bytes=100.0)
    plain = step_cost(TINY, StepComposition((5, 1), (0, 9), (False, True)))
    cost = step_cost(TINY, found)
    assert cost.swap_bytes == 300.0
    assert cost.moved_bytes == plain.moved_bytes + 300.0 + 2 * 100.0
    assert cost.useful_bytes == plain.moved_bytes


def test_weights_are_read_once_whatever_the_batch_and_alone_give_one_flop_a_byte_a_sequence() -> None:
    """With 16-bit weights the intensity over weights alone is 2 * B / 2 = B FLOP/B (linear and head FLOPs)."""
    model = CostModel.of(SMOLLM2_135M)
    for batch in (1, 8, 32):
        cost = model.cost(StepComposition.decode((100,) * batch))
        matrices = 2 * SMOLLM2_135M.num_parameters
        assert cost.weight_bytes == pytest.approx(matrices, rel=1e-3)
        assert (cost.linear_flops + cost.logits_flops) / cost.weight_bytes == pytest.approx(batch, rel=2e-3)


def test_only_sampled_rows_pay_for_logits() -> None:
    model = CostModel.of(SMOLLM2_135M)
    chunk = model.cost(StepComposition((64,), (0,), (False,)))
    last = model.cost(StepComposition((64,), (0,), (True,)))
    assert chunk.logits_flops == 0.0
    assert last.logits_flops == 2 * 49152 * 576
    assert last.weight_bytes - chunk.weight_bytes == 49152 * 576 * 2  # the tied head is read whole
    assert last.linear_flops == chunk.linear_flops == 64 * 2 * 30 * (576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536)


def test_padding_is_paid_for_but_not_useful() -> None:
    live = StepComposition((1, 1), (10, 4), (True, True))
    padded = StepComposition((1, 1), (10, 4), (True, True), padded_rows=4, padded_width=1, padded_context=11)
    cost, plain = step_cost(TINY, padded), step_cost(TINY, live)
    assert cost.useful_flops == plain.flops
    assert cost.useful_bytes == plain.moved_bytes
    assert cost.rows == 4
    assert cost.kv_read_bytes == 4 * 11 * TINY.kv_bytes_per_token("bfloat16")
    assert 0.4 < cost.useful_share < 0.5


def test_experts_touched() -> None:
    assert experts_touched(8, 2, 1) == pytest.approx(2)
    assert experts_touched(8, 2, 2) == pytest.approx(3.5)
    assert experts_touched(8, 2, 1000) == pytest.approx(8)
    assert experts_touched(0, 0, 5) == 0
    moe = CostModel.of(model_named("Mixtral 8x7B"))
    one, many = (moe.cost(StepComposition.decode((1,) * n)) for n in (1, 256))
    assert one.weight_bytes < many.weight_bytes / 3  # 13 of 47 billion for a lone token
    assert many.weight_bytes == pytest.approx(2 * 46_702_792_704 - 2 * 32000 * 4096, rel=1e-3)
    assert one.linear_flops + one.logits_flops == pytest.approx(2 * 12.75e9, rel=0.01)  # 12.9 billion active, table left out


def test_tensor_parallelism_divides_work_and_adds_traffic_between_devices() -> None:
    spec = model_named("Llama 3.1 8B")
    step = StepComposition.decode((500,) * 16)
    whole = step_cost(spec, step)
    quarter = step_cost(spec, step, tensor_parallel=4)
    assert whole.comm_bytes == 0
    assert quarter.flops == pytest.approx(whole.flops / 4)
    assert quarter.moved_bytes == pytest.approx(whole.moved_bytes / 4)
    assert quarter.comm_bytes == 2 * 32 * 2 * (3 / 4) * 16 * 4096 * 2  # 2 all-reduces a layer, ring, 16 bit
    sixteen = step_cost(spec, step, tensor_parallel=16)  # 8 KV heads: each is kept twice
    assert sixteen.kv_read_bytes == pytest.approx(whole.kv_read_bytes / 8)
    with pytest.raises(ConfigError, match="divide the 32 query heads"):
        step_cost(spec, step, tensor_parallel=3)


def test_number_formats() -> None:
    spec = model_named("Llama 3.1 8B")
    step = StepComposition.decode((1000,) * 8)
    full = step_cost(spec, step)
    int4 = step_cost(spec, step, weight_dtype="int4", head_dtype="bfloat16", kv_dtype="fp8")
    assert int4.kv_read_bytes == full.kv_read_bytes / 2
    assert int4.flops == full.flops
    layers = 32 * (spec.attention_parameters_per_layer + spec.mlp_parameters_per_expert)
    assert full.weight_bytes - int4.weight_bytes == pytest.approx(layers * (2 - 0.5 - 2 / 128))
    with pytest.raises(ConfigError, match="int3"):
        parameter_bytes("int3")


def test_figures_of_the_real_tensors_win() -> None:
    step = StepComposition.decode((7, 9))
    cost = step_cost(TINY, step, weight_bytes_read=1_000_000.0, kv_bytes_per_token=100.0)
    assert cost.weight_bytes == pytest.approx(1_000_000.0 + 2 * 64 * 2)
    assert cost.kv_read_bytes == 1800.0
    assert cost.kv_write_bytes == 200.0


def test_an_empty_step_costs_nothing() -> None:
    cost = step_cost(TINY, StepComposition())
    assert (cost.flops, cost.moved_bytes, cost.intensity, cost.useful_share) == (0.0, 0.0, 0.0, 1.0)


def test_pricing_64_rows_is_cheap_enough_for_every_live_step() -> None:
    n = 64
    output = SchedulerOutput(
        1, tuple(map(str, range(n))), (1,) * (n - 2) + (100, 40), tuple(range(100, 100 + n)), (True,) * n, (False,) * n
    )
    work = lambda: step_cost(SMOLLM2_135M, StepComposition.from_scheduler_output(output, 1.0))  # noqa: E731
    assert min(timeit.repeat(work, number=50, repeat=20)) / 50 < 50e-6
