"""Kind: extreme sampling settings crash the sampler and its neighbours."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from core.errors import RefusalReason, RequestRefused
from core.request import SamplingParams, validate_sampling
from core.runtime.sampler import Sampler, SamplingBatch
from tests.runtime_driver import generate_alone, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

EXTREMES = [
    SamplingParams(temperature=t, top_p=p, top_k=k)
    for t, p, k in itertools.product((0.0, 1e-8, 1e-4, 1.0), (0.0, 1e-4, 1.0), (0, 1, 256, 257))
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_settings_do_not_crash_or_touch_neighbours(dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(4, 256, generator=torch.Generator().manual_seed(0))).to(dtype)
    greedy = logits.float().argmax(dim=-1).tolist()
    plain = [SamplingParams(), SamplingParams(temperature=0.9), SamplingParams(temperature=0.7, top_p=0.8)]
    seeds, places = np.array([1, 2, 3, 4], np.uint64), np.arange(4)
    usual, _ = Sampler((0,)).sample(logits[1:], SamplingBatch(("b", "c", "d"), plain, seeds[1:], places[1:]))
    for odd in EXTREMES:
        batch = SamplingBatch(("odd", "b", "c", "d"), [odd, *plain], seeds, places)
        ids, _ = Sampler((0,)).sample(logits, batch)
        assert ids[1:].tolist() == usual.tolist()
        assert 0 <= ids[0] < 256
        if odd.temperature < 1e-3 or odd.top_p < 1e-3 or odd.top_k == 1:
            assert ids[0] == greedy[0], odd


def test_top_k_off_and_above_the_vocabulary_are_the_same() -> None:
    logits = torch.randn(1, 256, generator=torch.Generator().manual_seed(0)).expand(500, -1)
    columns = (np.full(500, 9, np.uint64), np.arange(500))
    draws = [
        Sampler(())
        .sample(logits, SamplingBatch(("r",) * 500, [SamplingParams(temperature=1.0, top_k=k)] * 500, *columns))[0]
        .tolist()
        for k in (0, 256, 257)
    ]
    assert draws[0] == draws[1] == draws[2]


def test_tiny_temperature_runs_through_the_model_as_greedy() -> None:
    runner = make_runner()
    prompt = prompts_of((7,))[0]
    greedy = generate_alone(runner, prompt, 10)
    for temperature in (1e-8, 1e-4):
        assert generate_alone(runner, prompt, 10, sampling=SamplingParams(temperature=temperature), seed=3) == greedy


@pytest.mark.parametrize("bad", [
    SamplingParams(temperature=-0.1), SamplingParams(temperature=math.nan), SamplingParams(temperature=math.inf),
    SamplingParams(top_p=-0.1), SamplingParams(top_p=1.5), SamplingParams(top_p=math.nan), SamplingParams(top_k=-1),
])  # fmt: skip
def test_senseless_settings_are_refused_at_submission(bad: SamplingParams) -> None:
    with pytest.raises(RequestRefused) as caught:
        validate_sampling("r", bad)
    assert caught.value.reason is RefusalReason.BAD_SAMPLING
