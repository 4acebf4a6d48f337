"""Kind: padding or unwritten slots leak garbage (NaN) into results."""

from __future__ import annotations

import math

import pytest
import torch

from core.request import SamplingParams
from tests.runtime_driver import Driver, generate_alone, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

LENGTHS = (1, 3, 5, 17)
LOGPROBS = SamplingParams(logprobs=3)


def outcome(nan_fill: bool, padded: bool) -> list[object]:
    """Tokens and log-probabilities of four requests in a pool of 16 blocks."""
    driver = Driver(make_runner(num_blocks=16, nan_fill=nan_fill))
    prompts = prompts_of(LENGTHS, seed=3)
    for index, prompt in enumerate(prompts):
        driver.add(str(index), prompt, LOGPROBS)
    seen: list[object] = []
    for step in range(8):
        counts = {i: r.missing for i, r in driver.live.items()}
        width = 17 if step == 0 else 1
        # Two rows more than requests: held rows, all padding.
        result = driver.step(counts, padded=(6, width, 17 + step) if padded else (0, 0, 0))
        seen.append((result.sampled, result.logprobs))
        assert all(math.isfinite(value) for _, top in result.logprobs for _, value in top.top)
    return seen


@pytest.mark.parametrize("padded", [False, True])
def test_garbage_in_unused_slots_never_matters(padded: bool) -> None:
    assert outcome(nan_fill=True, padded=padded) == outcome(nan_fill=False, padded=padded)


def test_padding_does_not_change_the_tokens() -> None:
    plain, padded = outcome(nan_fill=True, padded=False), outcome(nan_fill=True, padded=True)
    assert [step[0] for step in plain] == [step[0] for step in padded]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_freed_blocks_that_held_nan_do_not_affect_later_requests(dtype: torch.dtype) -> None:
    runner = make_runner(num_blocks=16, dtype=dtype)
    first, second = prompts_of((17, 21), seed=4)
    expected = generate_alone(runner, second, 12)
    driver = Driver(runner)
    driver.add("a", first)
    driver.run(5)
    held = list(driver.live["a"].blocks)
    driver.finish("a")
    runner.cache.key[:, held] = math.nan
    runner.cache.value[:, held] = math.nan
    driver.add("b", second)
    assert driver.run(12)["b"] == expected
    assert set(driver.live["b"].blocks) & set(held)
