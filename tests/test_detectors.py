"""Each detector finds its failure where it is, names the first step, and stays silent on a healthy run."""

from __future__ import annotations

import dataclasses

import pytest

from core.detectors import DETECTORS, WINDOW, judge
from core.failure_modes import FAILURE_MODES, failure_mode
from core.records import StepRecord

HEALTHY = StepRecord(
    step=0,
    start_s=0.0,
    duration_s=0.020,
    schedule_s=0.0,
    prepare_s=0.0,
    forward_s=0.019,
    sample_s=0.0,
    transfer_s=0.0,
    update_s=0.0,
    num_running=8,
    num_waiting=0,
    num_preempted=0,
    prefill_requests=0,
    decode_requests=8,
    prefill_tokens=0,
    decode_tokens=8,
    padded_tokens=0,
    output_tokens=8,
    cached_tokens=0,
    budget_tokens=512,
    max_num_seqs=8,
    admitted=0,
    finished=0,
    preempted=0,
    blocks_live=32,
    blocks_cached=0,
    blocks_free=32,
    kv_slots_used=500,
    flops=1.0,
    useful_flops=1.0,
    weight_bytes=1.0,
    kv_read_bytes=1.0,
    kv_write_bytes=1.0,
    useful_bytes=3.0,
    swap_bytes=0.0,
    bound_by="load",
    full_batch=False,
)


def run(*changes: tuple[int, dict]) -> list[StepRecord]:
    """Stretches of steps: (number of steps, what differs from a healthy step)."""
    records: list[StepRecord] = []
    for count, change in changes:
        for _ in range(count):
            step = len(records)
            values = {k: v(step) if callable(v) else v for k, v in change.items()}
            records.append(dataclasses.replace(HEALTHY, step=step, start_s=step * 0.02, **values))
    return records


SICK: dict[str, tuple[dict, int]] = {
    # what differs, and how many sick steps are needed before the first window is over the limit
    "ragged tail": ({"padded_tokens": 6, "decode_tokens": 2, "decode_requests": 2}, 2 * WINDOW),
    "padding waste": ({"prefill_tokens": 100, "padded_tokens": 300}, 1),
    "starvation": ({"num_waiting": 5}, 100),
    "prefill interference": ({"prefill_tokens": 400, "duration_s": 0.2}, 1),
    "memory ceiling": ({"num_waiting": 5, "admitted": 1, "bound_by": "KV memory"}, 2 * WINDOW),
    "preemption thrash": ({"preempted": 1}, 4 * WINDOW),
    "head-of-line blocking": ({"num_waiting": 5, "bound_by": "KV memory"}, 2 * WINDOW),
    "batch churn": ({"late_joins": 1}, 2 * WINDOW),
    "host-bound": ({"forward_s": 0.010}, 2 * WINDOW),
}


@pytest.mark.parametrize("name", sorted(SICK))
def test_detector_finds_its_failure_and_names_the_step(name: str) -> None:
    change, steps = SICK[name]
    verdict = DETECTORS[name](run((40, {}), (steps, change)))
    assert verdict.found, verdict
    assert verdict.value is not None
    assert verdict.value > verdict.limit
    assert verdict.began_at is not None
    # a window may begin in the healthy stretch, never more than itself before the first sick step
    assert 40 - 4 * WINDOW < verdict.began_at <= 41
    shown = f"{100 * verdict.value:.3g} %" if verdict.unit == "share" else f"{verdict.value:.3g}"
    assert shown in verdict.sentence


def test_cache_thrash_is_known_content_computed_again() -> None:
    warm = {"admitted": 1, "cached_tokens": 96, "prefill_tokens": 16}
    lost = {"admitted": 1, "cached_tokens": 0, "prefill_tokens": 112, "refaulted_tokens": 96}
    cold = {"admitted": 1, "cached_tokens": 0, "prefill_tokens": 112}
    assert DETECTORS["cache thrash"](run((40, warm), (80, lost))).found
    assert not DETECTORS["cache thrash"](run((120, warm))).found
    assert not DETECTORS["cache thrash"](run((40, warm), (80, cold))).found, "a prompt never seen before is no thrash"


def test_a_healthy_run_has_no_finding() -> None:
    assert [v.name for v in judge(run((200, {}))) if v.found] == []


def test_an_empty_run_is_judged_without_a_value() -> None:
    for verdict in judge([]):
        assert not verdict.found
        assert verdict.began_at is None


def test_every_mode_has_a_detector_a_cure_and_valid_knobs() -> None:
    assert {m.detector for m in FAILURE_MODES} == set(DETECTORS)
    for mode in FAILURE_MODES:
        sick, cured = mode.configs(cured=False), mode.configs(cured=True)
        assert sick != cured, f"{mode.key}: the cure changes nothing"
        assert sick[2].seed == cured[2].seed
        assert failure_mode(mode.key) is mode
    with pytest.raises(KeyError, match="ragged-tail"):
        failure_mode("nonsense")
