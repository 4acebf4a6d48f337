"""Fault 19: keys of different meaning go into the hash untagged or not at all, so requests that must not share do."""

from __future__ import annotations

import itertools

import pytest

from core.prefix_hash import root_key
from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens

PROMPT = distinct_tokens("one prompt", 12)
SPACES: list[dict[str, object]] = [
    {},
    {"cache_salt": ""},
    {"cache_salt": "x"},
    {"tenant": "x"},
    {"tenant": "ab", "cache_salt": "c"},
    {"tenant": "a", "cache_salt": "bc"},
    {"tenant": "abc"},
    {"cache_salt": "default"},
]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(range(len(SPACES)), repeat=2)))
def test_hits_only_between_equal_sets(first: int, second: int) -> None:
    driver = Driver(create_scheduler(block_size=4))
    hits = []
    for number, space in enumerate((SPACES[first], SPACES[second])):
        request = create_request(f"r{number}", PROMPT, 1, **space)
        driver.add(request)
        driver.run()
        hits.append(request.num_cached_tokens)
    assert hits == [0, 8 if first == second else 0]


def test_pairs_are_tagged_and_their_order_does_not_matter() -> None:
    keys = {
        root_key([("tenant", "x")]),
        root_key([("salt", "x")]),
        root_key([("tenant", "x"), ("salt", "")]),
        root_key([]),
        root_key([("a", "b"), ("c", "d")]),
        root_key([("ab", ""), ("c", "d")]),
    }
    assert len(keys) == 6
    assert root_key([("a", "b"), ("c", "d")]) == root_key([("c", "d"), ("a", "b")])


def test_counters_of_a_tenant_show_no_hit_from_another() -> None:
    driver = Driver(create_scheduler(block_size=4))
    for number, tenant in enumerate(["one", "two", "three"]):
        driver.add(create_request(f"r{number}", PROMPT, 1, tenant=tenant))
        driver.run()
    accounts = driver.scheduler._state.ledger.accounts
    assert {name: (a.hit_tokens, a.queried_tokens) for name, a in accounts.items()} == dict.fromkeys(
        ["one", "two", "three"], (0, 12)
    )
