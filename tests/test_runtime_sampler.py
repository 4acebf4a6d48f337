"""The sampler: the distribution that was asked for, whatever the neighbours ask for, and no setting that breaks it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ExecutorError
from core.request import SamplingParams
from core.runtime.draw_device import draw_rows
from core.runtime.random_stream import philox4x32, uniforms
from core.runtime.sampler import Sampler, SamplingBatch
from tests.runtime_driver import one_thread

__all__ = ["one_thread"]  # the fixture

VOCAB = 2000


def batch_of(params: list[SamplingParams], seeds: list[int] | None = None, positions: list[int] | None = None) -> SamplingBatch:
    n = len(params)
    return SamplingBatch(
        tuple(str(i) for i in range(n)),
        params,
        np.array(seeds or [7] * n, np.uint64),
        np.array(positions or [0] * n, np.int64),
    )


def draw(logits: torch.Tensor, params: SamplingParams, count: int, path: str = "host") -> np.ndarray:
    """`count` tokens at output positions 0, 1, ... of one seed; the device's path runs on a CPU too."""
    rows = logits.expand(count, -1).float()
    batch = batch_of([params] * count, positions=list(range(count)))
    if path == "host":
        return Sampler(()).sample(rows, batch)[0]
    u = torch.from_numpy(uniforms(batch.seeds, batch.positions))
    return draw_rows(rows, rows.amax(dim=-1), batch.params, u).numpy()


both_paths = pytest.mark.parametrize("path", ["host", "device"])


def allowed(logits: torch.Tensor, p: SamplingParams) -> dict[int, float]:
    """The plain definition, one row, in Python numbers: token -> probability."""
    order = sorted(range(len(logits)), key=lambda t: (-float(logits[t]), t))
    top = float(logits[order[0]])
    weight = {t: math.exp((float(logits[t]) - top) / p.temperature) for t in order}
    kept = order
    if 0 < p.top_k < len(order):
        edge = weight[order[p.top_k - 1]]
        kept = [t for t in order if weight[t] >= edge]
    total = sum(weight[t] for t in kept)
    nucleus, mass = [], 0.0
    for t in kept:
        if nucleus and p.top_p < 1 and mass >= p.top_p * total:
            break
        nucleus.append(t)
        mass += weight[t]
    return {t: weight[t] / mass for t in nucleus}


def test_philox_known_answers() -> None:
    """Vectors of the Random123 distribution (kat_vectors, philox4x32 10)."""
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]  # fmt: skip
    for counter, key, expected in cases:
        words = philox4x32(*(tuple(np.array([w], np.uint64) for w in part) for part in (counter, key)))
        assert tuple(int(w[0]) for w in words) == expected


def test_uniforms_depend_on_seed_and_position_only() -> None:
    seeds = np.array([1, 1, 2, 2**63 - 1], np.uint64)
    places = np.array([0, 1, 0, 5], np.int64)
    together = uniforms(seeds, places)
    assert len(set(together.tolist())) == 4
    for i in range(4):
        assert uniforms(seeds[i : i + 1], places[i : i + 1])[0] == together[i]
    many = uniforms(np.full(20_000, 3, np.uint64), np.arange(20_000))
    assert many.min() >= 0
    assert many.max() < 1
    counts, _ = np.histogram(many, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi square, 19 degrees of freedom, p = 0.001


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [5, 900]] = 2.0
    logits[2, 1999] = 1.0
    ids, _ = Sampler(()).sample(logits, batch_of([SamplingParams()] * 3))
    assert ids.tolist() == [0, 5, 1999]


@both_paths
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.05, 5.0),
    top_k=st.sampled_from([0, 2, 3, 50, 300, VOCAB, VOCAB + 1]),
    top_p=st.sampled_from([0.0, 1e-4, 0.3, 0.9, 0.999, 1.0]),
    rounded=st.booleans(),
)
def test_only_allowed_tokens_are_drawn(seed: int, temperature: float, top_k: int, top_p: float, rounded: bool, path: str) -> None:
    """Against the plain definition; rounded logits have many ties, also at the edges of the sets."""
    logits = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    if rounded:
        logits = logits.to(torch.bfloat16)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    inside = allowed(logits.float(), params)
    drawn = draw(logits.unsqueeze(0), params, 40, path)
    # At the very edge of a nucleus two orders of summation may differ by one token of negligible weight.
    outside = [t for t in drawn.tolist() if t not in inside]
    assert all(float(logits[t]) >= min(float(logits[i]) for i in inside) - 1e-3 for t in outside)
    assert len(outside) <= 1


@both_paths
@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=1.3, top_p=0.8, top_k=8),
    SamplingParams(temperature=2.0, top_p=0.98),
])  # fmt: skip
def test_frequencies_follow_the_distribution(params: SamplingParams, path: str) -> None:
    logits = 2 * torch.randn(30, generator=torch.Generator().manual_seed(4))
    count = 8_000
    expected = allowed(logits, params)
    drawn = draw(logits.unsqueeze(0), params, count, path)
    observed = np.bincount(drawn, minlength=30)
    assert set(np.nonzero(observed)[0].tolist()) <= set(expected)
    chi = sum((observed[t] - count * p) ** 2 / (count * p) for t, p in expected.items())
    freedom = max(len(expected) - 1, 1)
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 5


@both_paths
def test_wide_nucleus_reaches_past_the_partial_sort(path: str) -> None:
    flat = torch.zeros(1, VOCAB)
    drawn = draw(flat, SamplingParams(temperature=1.0, top_p=0.9), 3000, path)
    assert drawn.max() > 1000
    assert drawn.max() < 0.9 * VOCAB + 1  # ties are taken lowest id first


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(6, VOCAB, generator=generator)
    params = [
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=700),
        SamplingParams(temperature=1.5, top_p=0.95),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.5),
        SamplingParams(temperature=1e-4, top_p=1e-4),
    ]
    seeds, places = [3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]
    together, _ = Sampler(()).sample(logits, batch_of(params, seeds, places))
    for i in range(6):
        alone, _ = Sampler(()).sample(logits[i : i + 1], batch_of(params[i : i + 1], seeds[i : i + 1], places[i : i + 1]))
        assert alone[0] == together[i]


def test_min_tokens_forbids_every_way_to_end() -> None:
    logits = torch.zeros(4, 10)
    logits[:, 3] = 9.0  # the model's end token
    logits[:, 4] = 8.0  # a stop token
    logits[:, 5] = 7.0
    wants = SamplingParams(min_tokens=2, stop_token_ids=(4,))
    ignores = SamplingParams(min_tokens=2, stop_token_ids=(4,), ignore_eos=True)
    ids, _ = Sampler((3,)).sample(logits, batch_of([wants, wants, ignores, SamplingParams()], positions=[1, 2, 0, 0]))
    assert ids.tolist() == [5, 3, 3, 3]
    assert logits[0, 3] == 9.0, "the caller's logits are not changed"


def test_logprobs_are_those_of_the_model() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(logprobs=2), SamplingParams(), SamplingParams(logprobs=5, temperature=0.5, seed=1)]
    ids, logprobs = Sampler(()).sample(logits, batch_of(params))
    table = torch.log_softmax(logits, dim=-1)
    assert [name for name, _ in logprobs] == ["0", "2"]
    for (name, entry), count in zip(logprobs, (2, 5), strict=True):
        row = table[int(name)]
        assert entry.token_id == ids[int(name)]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]))
        best = row.topk(count)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [v for _, v in entry.top] == pytest.approx(best.values.tolist())


def test_broken_logits_are_named_not_sampled() -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = float("nan")
    with pytest.raises(ExecutorError, match="logits of 1 are not finite"):
        Sampler(()).sample(logits, batch_of([SamplingParams()] * 3))


@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 5000])
@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0), SamplingParams(temperature=1e-4), SamplingParams(temperature=50.0, top_p=0.99),
    SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0, top_k=300),
])  # fmt: skip
def test_both_paths_agree_at_every_vocabulary_size(vocab: int, params: SamplingParams) -> None:
    """Host weights are float32, device weights float64: the same token unless the random number falls on an edge."""
    logits = 2 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab))
    host, device = (draw(logits, params, 300, path) for path in ("host", "device"))
    assert (host != device).mean() < 0.01
