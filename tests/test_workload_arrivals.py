"""Arrival processes and loads: their laws, their determinism, and what they refuse."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from core.config import replace_knobs
from core.errors import ConfigError
from core.prompts import RandomPrompts
from core.workload import ArrivalProcess, LengthSpec, LoadGenerator, LoadSpec, TenantShare, arrivals

PROMPTS = RandomPrompts(vocab_size=200)
SHORT = LengthSpec.fixed(4)


def spec(**changes):
    return replace_knobs(LoadSpec(prompt_tokens=SHORT, output_tokens=SHORT), **changes)


def times(load: LoadSpec, count: int, start_s: float = 0.0) -> np.ndarray:
    return np.array([a.time_s for a in itertools.islice(arrivals(load, PROMPTS, start_s), count)])


@pytest.mark.parametrize(
    ("process", "cv", "expected_cv"),
    [("poisson", 1.0, 1.0), ("gamma", 3.0, 3.0), ("gamma", 0.25, 0.25), ("constant", 1.0, 0.0)],
)
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(process, cv, expected_cv):
    gaps = np.diff(times(spec(process=process, rate_per_s=4.0, cv=cv, seed=11), 20_000))
    assert gaps.mean() == pytest.approx(1 / 4.0, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(expected_cv, rel=0.08, abs=1e-6)
    assert (gaps >= 0).all()


def test_poisson_counts_in_windows_have_the_variance_of_a_poisson_law():
    at = times(spec(process="poisson", rate_per_s=5.0, seed=2), 20_000)
    counts = np.bincount(at.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)


def test_same_seed_same_arrivals_and_another_seed_others():
    load = LoadSpec(process="gamma", rate_per_s=3.0, seed=5, shared_prefix_share=0.4)
    first, again = (list(itertools.islice(arrivals(load, PROMPTS), 200)) for _ in range(2))
    other = list(itertools.islice(arrivals(replace_knobs(load, seed=6), PROMPTS), 200))
    assert first == again
    assert [a.prompt_token_ids for a in first] != [a.prompt_token_ids for a in other]
    assert [a.index for a in first] == list(range(200))


def test_rate_and_process_move_times_but_never_what_is_asked():
    slow, fast, closed = (
        spec(process="poisson", rate_per_s=1.0, prompt_tokens=LengthSpec.uniform(1, 50)),
        spec(process="gamma", rate_per_s=80.0, cv=2.0, prompt_tokens=LengthSpec.uniform(1, 50)),
        spec(process="closed_loop", users=50, prompt_tokens=LengthSpec.uniform(1, 50)),
    )
    a = list(itertools.islice(arrivals(slow, PROMPTS), 50))
    b = list(itertools.islice(arrivals(fast, PROMPTS), 50))
    c = LoadGenerator(closed, PROMPTS).due(0.0)
    assert [x.prompt_token_ids for x in a] == [x.prompt_token_ids for x in b] == [x.prompt_token_ids for x in c]
    assert [x.time_s for x in a] != [x.time_s for x in b]


def test_the_module_leaves_the_global_random_state_alone():
    random.seed(1)
    np.random.seed(1)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    list(itertools.islice(arrivals(LoadSpec(), PROMPTS), 20))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_due_hands_out_each_arrival_once_in_order_whatever_the_polling():
    load = spec(process="poisson", rate_per_s=20.0, num_requests=300, seed=3)
    expected = list(arrivals(load, PROMPTS))
    generator = LoadGenerator(load, PROMPTS)
    polled, now = [], 0.0
    while not generator.is_exhausted:
        now += 0.37
        batch = generator.due(now, limit=5)
        assert all(a.time_s <= now for a in batch)
        polled.extend(batch)
    assert polled == expected
    assert len(polled) == 300
    assert generator.next_time_s is None


def test_start_time_shifts_every_arrival():
    load = spec(process="poisson", seed=4)
    assert times(load, 50, start_s=5000.0) == pytest.approx(times(load, 50) + 5000.0)


def test_burst_comes_at_once_and_again_after_its_period():
    once = LoadGenerator(spec(process="burst", burst_size=7), PROMPTS, start_s=2.0)
    assert once.due(1.9) == []
    assert [a.time_s for a in once.due(2.0)] == [2.0] * 7
    assert once.is_exhausted
    assert once.next_time_s is None
    repeated = spec(process="burst", burst_size=3, burst_period_s=10.0, num_requests=8)
    assert times(repeated, 100).tolist() == [0, 0, 0, 10, 10, 10, 20, 20]


def test_closed_loop_never_has_more_in_flight_than_users_and_thinks_between():
    load = spec(process="closed_loop", users=3, think_time_s=0.0)
    loop = LoadGenerator(load, PROMPTS)
    first = loop.due(0.0)
    assert sorted(a.user for a in first) == [0, 1, 2]
    assert loop.due(100.0) == []
    assert loop.next_time_s is None
    loop.on_end(1, 100.0)
    (nxt,) = loop.due(100.0)
    assert (nxt.user, nxt.time_s, nxt.index) == (1, 100.0, 3)

    joining = LoadGenerator(spec(process="closed_loop", users=4, ramp_s=8.0), PROMPTS, start_s=1.0)
    assert [(a.user, a.time_s) for a in joining.due(100.0)] == [(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)]

    thinking = LoadGenerator(spec(process="closed_loop", users=1, think_time_s=2.0, seed=8), PROMPTS)
    gaps, now = [], 0.0
    for _ in range(4000):
        (arrival,) = thinking.due(1e9)
        gaps.append(arrival.time_s - now)
        now = arrival.time_s + 0.5  # the answer takes half a second
        thinking.on_end(0, now)
    assert np.mean(gaps) == pytest.approx(2.0, rel=0.06)


def test_closed_loop_ends_after_its_requests_and_has_no_fixed_arrivals():
    loop = LoadGenerator(spec(process="closed_loop", users=2, num_requests=3), PROMPTS)
    assert len(loop.due(0.0)) == 2
    loop.on_end(0, 1.0)
    loop.on_end(1, 1.0)
    assert len(loop.due(1.0)) == 1
    assert loop.is_exhausted
    with pytest.raises(ConfigError, match="closed loop has no fixed arrivals"):
        next(arrivals(spec(process="closed_loop"), PROMPTS))


def test_tenants_come_in_their_shares_with_their_priorities():
    mix = (TenantShare("heavy", 40.0, 5), TenantShare("light", 1.0, 1))
    found = list(itertools.islice(arrivals(spec(tenants=mix, seed=1), PROMPTS), 8200))
    light = [a for a in found if a.tenant == "light"]
    assert len(light) == pytest.approx(200, rel=0.25)
    assert {a.priority for a in light} == {1}
    assert {a.tenant for a in found} == {"heavy", "light"}


def test_shared_prefixes_come_at_their_share_and_are_equal_within_an_id():
    load = spec(
        shared_prefix_share=0.6, shared_prefix_tokens=32, num_shared_prefixes=3, prompt_tokens=LengthSpec.uniform(10, 60), seed=9
    )
    found = list(itertools.islice(arrivals(load, PROMPTS), 3000))
    sharing = [a for a in found if a.prefix_id >= 0]
    assert len(sharing) / len(found) == pytest.approx(0.6, abs=0.03)
    heads = {i: {a.prompt_token_ids[:32] for a in sharing if a.prefix_id == i} for i in range(3)}
    assert [len(h) for h in heads.values()] == [1, 1, 1]
    assert len(set.union(*heads.values())) == 3
    assert min(a.prompt_tokens for a in sharing) >= 33
    # The share changes who has a prefix, never the lengths that were drawn for the others.
    plain = list(itertools.islice(arrivals(replace_knobs(load, shared_prefix_share=0.0), PROMPTS), 3000))
    pairs = [(a, b) for a, b in zip(found, plain, strict=True) if a.prefix_id < 0]
    assert all(a.prompt_tokens == b.prompt_tokens and a.max_tokens == b.max_tokens for a, b in pairs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"process": "weekly"}, "choose one of: poisson, gamma, constant, closed_loop, burst"),
        ({"rate_per_s": 0.0}, "rate_per_s is 0.0"),
        ({"rate_per_s": float("nan")}, "rate_per_s is nan"),
        ({"cv": -1.0}, "cv is -1.0"),
        ({"users": 0}, "users is 0"),
        ({"users": 2.5}, "users is 2.5; give a whole number"),
        ({"think_time_s": -1}, "think_time_s is -1"),
        ({"ramp_s": -1}, "ramp_s is -1"),
        ({"burst_size": 0}, "burst_size is 0"),
        ({"num_requests": 0}, "num_requests is 0"),
        ({"tenants": ()}, "tenant mix is empty"),
        ({"tenants": (TenantShare("a"), TenantShare("a"))}, "listed twice"),
        ({"tenants": (TenantShare("a", 0.0),)}, "weight of tenant a is 0.0"),
        ({"shared_prefix_share": 1.5}, "shared_prefix_share is 1.5"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"slo_ttft_s": 0.0}, "slo_ttft_s is 0.0"),
        ({"seed": -1}, "seed is -1"),
        ({"prompt_tokens": 5}, "prompt_tokens must be a LengthSpec"),
        ({"speed": 3}, "unknown knob speed"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused_with_the_value_found(changes, words):
    with pytest.raises(ConfigError, match=words):
        spec(**changes)


def test_every_process_has_a_label_that_names_its_knob():
    labels = {p: spec(process=p, rate_per_s=2.5, users=9, burst_size=33).label for p in ArrivalProcess}
    assert "2.5 req/s" in labels["poisson"]
    assert "cv 3" in labels["gamma"]
    assert "9 users" in labels["closed_loop"]
    assert "burst of 33" in labels["burst"]
    assert len(set(labels.values())) == 5
