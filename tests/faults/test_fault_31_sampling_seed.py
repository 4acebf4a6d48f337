"""Kind: a seeded request is reproducible only if all its neighbours are seeded."""

from __future__ import annotations

from core.request import SamplingParams
from tests.runtime_driver import Driver, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

PROMPTS = prompts_of((2, 9, 31, 4, 16, 23, 1, 12))
SEEDED = SamplingParams(temperature=0.8, seed=42)


def seeded_alone() -> list[int]:
    driver = Driver(make_runner())
    driver.add("s", PROMPTS[4], SEEDED, seed=42)
    return driver.run(24)["s"]


def beside_unseeded(other_seed: int) -> list[int]:
    driver = Driver(make_runner())
    driver.add("x", PROMPTS[1], SamplingParams(temperature=1.2, top_p=0.9), seed=other_seed)
    driver.add("s", PROMPTS[4], SEEDED, seed=42)
    return driver.run(24)["s"]


def preempted_once(at: int) -> list[int]:
    driver = Driver(make_runner())
    driver.add("s", PROMPTS[4], SEEDED, seed=42)
    while len(driver.live["s"].output) < at:
        driver.step({"s": driver.live["s"].missing})
    driver.take_back("s")
    return driver.run(24, chunk=7)["s"]


def joined_later(steps: int) -> list[int]:
    driver = Driver(make_runner())
    driver.add("x", PROMPTS[2], SamplingParams(temperature=1.2), seed=5)
    for _ in range(steps):
        driver.step({"x": driver.live["x"].missing})
    driver.add("s", PROMPTS[4], SEEDED, seed=42)
    for _ in range(4):  # partial prompt steps and a skipped one draw nothing
        driver.step({"s": 4, "x": 1} if driver.live["s"].missing > 4 else {"x": 1})
    return driver.run(24, chunk=4)["s"]


def test_sampling_seed_alone_decides() -> None:
    reference = seeded_alone()
    assert len(set(reference)) > 5
    for variant in (beside_unseeded, preempted_once, joined_later):
        for run in range(1, 5):
            assert variant(run) == reference, variant.__name__
    other = Driver(make_runner())
    other.add("s", PROMPTS[4], SEEDED, seed=43)
    assert other.run(24)["s"] != reference
