"""The runner: one greedy answer for a request, whatever the batch does around it; blocks move, faults are named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from core.errors import ConfigError, ExecutorError
from core.model_spec import TINY, ModelSpec, RopeScaling
from core.outputs import NewRequestData, SchedulerOutput
from core.request import SamplingParams
from core.runtime.plain_backend import PlainBackend
from tests.runtime_driver import Driver, generate_alone, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

LENGTHS = (3, 17, 8, 30, 1)
TOKENS = 24


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    runner = make_runner()
    return [generate_alone(runner, prompt, TOKENS) for prompt in prompts_of(LENGTHS)]


def driver_with(prompts: list[list[int]], **options: object) -> Driver:
    driver = Driver(make_runner(**options))  # type: ignore[arg-type]
    for index, prompt in enumerate(prompts):
        driver.add(str(index), prompt)
    return driver


def test_outputs_differ_between_prompts(expected: list[list[int]]) -> None:
    assert len({tuple(o) for o in expected}) == len(expected)
    assert len({t for o in expected for t in o}) > 10


def test_batched_equals_alone(expected: list[list[int]]) -> None:
    assert list(driver_with(prompts_of(LENGTHS)).run(TOKENS).values()) == expected


@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_chunked_equals_whole(expected: list[list[int]], chunk: int) -> None:
    assert list(driver_with(prompts_of(LENGTHS)).run(TOKENS, chunk=chunk).values()) == expected


def test_chunks_mixed_with_decodes_equal_alone(expected: list[list[int]]) -> None:
    driver = Driver(make_runner())
    for index, prompt in enumerate(prompts_of(LENGTHS)):
        driver.add(str(index), prompt)
        active = {i: min(r.missing, 4) for i, r in driver.live.items() if len(r.output) < TOKENS}
        driver.step(active)
    assert list(driver.run(TOKENS, chunk=4).values()) == expected


def test_preempted_equals_undisturbed(expected: list[list[int]]) -> None:
    driver = driver_with(prompts_of(LENGTHS))
    for step in range(200):
        active = {i: min(r.missing, 6) for i, r in driver.live.items() if len(r.output) < TOKENS}
        if not active:
            break
        driver.step(active)
        if step % 5 == 4:
            driver.take_back(str(step // 5 % len(LENGTHS)))
    assert [driver.live[str(i)].output for i in range(len(LENGTHS))] == expected


def test_swapped_equals_undisturbed(expected: list[list[int]]) -> None:
    """A request leaves to host memory, its device blocks are overwritten by another, it comes back into other blocks."""
    first, second = prompts_of(LENGTHS)[1], prompts_of(LENGTHS)[3]
    driver = Driver(make_runner(num_swap_blocks=16))
    driver.add("a", first)
    while len(driver.live["a"].output) < 7:
        driver.step({"a": driver.live["a"].missing})
    a = driver.live["a"]
    old = list(a.blocks)
    driver.free = [*old, *driver.free]
    driver.add("b", second)
    driver.released.append("a")
    driver.step({"b": len(second)}, swap_out=tuple(zip(old, range(len(old)), strict=True)))
    assert set(driver.live["b"].blocks) & set(old)
    a.blocks = [driver.free.pop(0) for _ in old]
    assert a.blocks != old
    back = NewRequestData("a", a.tokens, len(first), tuple(a.blocks), a.sampling, 0, resumed_by_swap=True)
    driver.step(
        {"b": 1},
        swap_in=tuple(zip(range(len(old)), a.blocks, strict=True)),
        new_requests=(back,),
    )
    outputs = driver.run(TOKENS)
    assert outputs["a"] == expected[1]
    assert outputs["b"] == expected[3]


def test_copied_blocks_carry_the_prefix(expected: list[list[int]]) -> None:
    prompt = prompts_of(LENGTHS)[3]
    driver = driver_with([prompt])
    driver.step({"0": len(prompt)})
    source = driver.live["0"].blocks[:4]
    target = [driver.free.pop() for _ in source]
    driver.add("copy", prompt)
    copy = driver.live["copy"]
    copy.blocks, copy.computed = target, 16
    driver.step({"copy": len(prompt) - 16}, copy_blocks=tuple(zip(source, target, strict=True)))
    assert driver.run(TOKENS)["copy"] == expected[3]


def test_prefix_blocks_may_be_shared(expected: list[list[int]]) -> None:
    prompt = prompts_of(LENGTHS)[3]
    driver = driver_with([prompt])
    driver.step({"0": len(prompt)})
    driver.add("reader", prompt)
    reader = driver.live["reader"]
    reader.blocks, reader.computed = driver.live["0"].blocks[:6], 24
    assert driver.run(TOKENS) == {"0": expected[3], "reader": expected[3]}


@pytest.mark.parametrize("spec", [
    dataclasses.replace(TINY, num_kv_heads=4),
    dataclasses.replace(TINY, num_kv_heads=1, head_dim=24),
    dataclasses.replace(TINY, tie_word_embeddings=False, attention_bias=True, model_type="qwen2"),
    dataclasses.replace(TINY, qk_norm=True, model_type="qwen3"),
    dataclasses.replace(TINY, sliding_window=7, model_type="mistral"),
    dataclasses.replace(TINY, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
], ids=["mha", "mqa", "qwen2", "qwen3", "window", "llama3"])  # fmt: skip
def test_every_geometry_is_batch_invariant(spec: ModelSpec) -> None:
    prompts = prompts_of((5, 19, 2))
    runner = make_runner(spec)
    alone = [generate_alone(runner, p, 12) for p in prompts]
    driver = driver_with(prompts, spec=spec)
    assert list(driver.run(12, chunk=3).values()) == alone


def test_logits_are_bitwise_equal_whatever_shares_the_step() -> None:
    """The reason why ids agree: not luck, the last bit of each logit agrees (one CPU, float32)."""
    captured: list[torch.Tensor] = []

    class Tap(PlainBackend):
        def linear(self, x, weight):
            out = super().linear(x, weight)
            if out.shape[1] == TINY.vocab_size:
                captured.append(out.clone())
            return out

    def final_logits(companions: int, chunk: int) -> torch.Tensor:
        driver = driver_with(prompts_of((21, *range(2, 2 + companions))), backend=Tap())
        captured.clear()
        while driver.live["0"].missing:
            ids = [i for i, r in driver.live.items() if not r.output or i == "0"]
            done = driver.step({i: min(driver.live[i].missing, chunk) for i in ids})
            if "0" in dict(done.sampled):
                return captured[-1][0]
        raise AssertionError

    reference = final_logits(0, 100)
    for companions, chunk in ((0, 1), (0, 4), (3, 100), (6, 5), (11, 7)):
        assert torch.equal(final_logits(companions, chunk), reference)


def test_padded_batch_gives_the_same_tokens(expected: list[list[int]]) -> None:
    prompts = prompts_of(LENGTHS)
    driver = driver_with(prompts)
    width = max(LENGTHS)
    driver.step({str(i): len(p) for i, p in enumerate(prompts)}, padded=(len(prompts), width, width))
    for step in range(1, TOKENS):
        # Rows end at different times; the rectangle keeps their places.
        active = {i: 1 for i, r in driver.live.items() if len(r.output) < min(TOKENS, 6 + 5 * int(i))}
        if active:
            driver.step(active, padded=(len(prompts), 1, width + step))
    for i, output in enumerate(expected):
        got = driver.live[str(i)].output
        assert got == output[: len(got)]
        assert len(got) == min(TOKENS, 6 + 5 * i)


def test_padded_prompt_may_run_in_slices(expected: list[list[int]]) -> None:
    prompts = prompts_of(LENGTHS)
    driver = driver_with(prompts)
    for column in range(0, 30, 10):
        counts = {}
        for i, p in enumerate(prompts):
            real = min(column + 10, 30) - max(30 - len(p), column)
            if real > 0:
                counts[str(i)] = real
        driver.step(counts, padded=(len(prompts), 10, column + 10))
    assert [r.output for r in driver.live.values()] == [o[:1] for o in expected]


def test_padding_costs_real_work() -> None:
    seen: list[int] = []

    class Counting(PlainBackend):
        def linear(self, x, weight):
            seen.append(x.shape[0] if weight is not self._weights.head else -x.shape[0])
            return super().linear(x, weight)

    driver = driver_with(prompts_of((3, 5)), backend=Counting())
    driver.step({"0": 3, "1": 5}, padded=(4, 8, 8))
    assert max(seen) == 4 * 8
    assert min(seen) == -4  # a logit row for each row of the rectangle


def test_only_sampling_rows_get_a_token() -> None:
    driver = driver_with(prompts_of((9, 4)))
    assert driver.step({"0": 5, "1": 4}).sampled == (("1", driver.live["1"].output[0]),)
    assert driver.step({"0": 3}).sampled == ()
    assert [i for i, _ in driver.step({"0": 1, "1": 1}).sampled] == ["0", "1"]


def test_info_counts_real_tensors() -> None:
    untied = dataclasses.replace(TINY, tie_word_embeddings=False)
    for spec in (TINY, untied):
        info = make_runner(spec).info
        assert info.weight_bytes == 4 * spec.num_parameters
        lookup = 0 if spec.tie_word_embeddings else 4 * spec.head_parameters
        assert info.weight_bytes_read == info.weight_bytes - lookup
        assert info.kv_bytes_per_token == spec.kv_bytes_per_token("float32")
    assert make_runner(dtype=torch.bfloat16).info.kv_bytes_per_token == TINY.kv_bytes_per_token("bfloat16")


def test_resize_forgets_requests_and_runs_again(expected: list[list[int]]) -> None:
    runner = make_runner()
    driver = Driver(runner)
    driver.add("0", prompts_of(LENGTHS)[0])
    driver.run(3)
    runner.resize(40, 8, 0)
    assert (runner.info.num_blocks, runner.info.block_size) == (40, 8)
    with pytest.raises(ExecutorError, match="does not hold request 0"):
        driver.step({"0": 1})
    again = Driver(runner)
    again.add("0", prompts_of(LENGTHS)[0])
    assert again.run(TOKENS)["0"] == expected[0]


def test_state_arrays_grow() -> None:
    prompts = prompts_of([5] * 70)
    driver = driver_with(prompts, num_blocks=200)
    together = driver.run(3)
    runner = make_runner()
    assert together["69"] == generate_alone(runner, prompts[69], 3)
    assert together["0"] == generate_alone(runner, prompts[0], 3)


@pytest.mark.parametrize(("change", "message"), [
    ({"num_scheduled_tokens": (9,)}, "holds 8 of its tokens"),
    ({"num_computed_tokens": (0,), "samples": (True,)}, "sampling: True"),
    ({"request_ids": ("ghost",)}, "does not hold request ghost"),
    ({"swap_out": ((0, 0),)}, "swap space has 0 blocks"),
    ({"padded_rows": 1, "padded_width": 1, "padded_context": 4}, "less than its 1 rows"),
])  # fmt: skip
def test_a_decision_that_does_not_fit_is_named(change: dict[str, object], message: str) -> None:
    runner = make_runner()
    prompt = tuple(prompts_of((8,))[0])
    start = SchedulerOutput(
        0, ("a",), (6,), (0,), (False,), (True,), new_requests=(NewRequestData("a", prompt, 8, (0, 1), SamplingParams(), 0),)
    )
    runner.execute_model(start)
    fits = SchedulerOutput(1, ("a",), (2,), (6,), (True,), (True,))
    with pytest.raises(ExecutorError, match=message):
        runner.execute_model(dataclasses.replace(fits, **change))
    assert len(runner.execute_model(fits).sampled) == 1


@pytest.mark.parametrize(("change", "message"), [
    ({"new_requests": (NewRequestData("b", (256,), 1, (0,), SamplingParams(), 0),)}, "tokens are 0 to 255"),
    ({"new_requests": (NewRequestData("b", (3, -1), 2, (0,), SamplingParams(), 0),)}, "tokens are 0 to 255"),
    ({"new_requests": (NewRequestData("b", (3,), 1, (64,), SamplingParams(), 0),)}, "pool has 64 blocks"),
    ({"new_requests": (NewRequestData("b", (3,), 1, (-1,), SamplingParams(), 0),)}, "pool has 64 blocks"),
    ({"copy_blocks": ((0, 64),)}, "copy_blocks"),
    ({"swap_out": ((0, 2),)}, "swap_out"),
    ({"swap_in": ((2, 0),)}, "swap_in"),
])  # fmt: skip
def test_an_index_that_does_not_exist_never_reaches_a_kernel(change: dict[str, object], message: str) -> None:
    runner = make_runner(num_swap_blocks=2)
    with pytest.raises(ExecutorError, match=message):
        runner.execute_model(dataclasses.replace(SchedulerOutput(0), **change))


def test_a_context_beyond_the_positions_is_named() -> None:
    driver = Driver(make_runner(dataclasses.replace(TINY, max_model_len=16)))
    driver.add("long", prompts_of((20,))[0])
    driver.step({"long": 16})
    with pytest.raises(ExecutorError, match="positions end at 16"):
        driver.step({"long": 1})


def test_host_block_used_both_ways_is_refused() -> None:
    runner = make_runner(num_swap_blocks=2)
    with pytest.raises(ExecutorError, match="host blocks \\[1\\]"):
        runner.execute_model(SchedulerOutput(0, swap_out=((3, 1),), swap_in=((1, 4),)))


def test_a_pool_beyond_memory_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError, match="GiB"):
        make_runner(num_blocks=90_000_000, block_size=4096)


def test_closing_twice_is_harmless_and_a_closed_runner_says_so() -> None:
    runner = make_runner()
    runner.close()
    runner.close()
    with pytest.raises(ExecutorError, match="closed"):
        runner.execute_model(SchedulerOutput(0))


def test_timing_is_measured_on_the_given_clock() -> None:
    class Ticking:
        time = 0.0

        def now(self) -> float:
            self.time += 1.0
            return self.time

        def on_step_end(self) -> None:
            return None

    driver = driver_with(prompts_of((4,)), clock=Ticking())
    timing = driver.step({"0": 4}).timing
    assert (timing.prepare_s, timing.forward_s, timing.sample_s) == (1.0, 1.0, 1.0)
