"""The fit of step times: finds a known law, shrugs off outliers, never gives a step with more work less time."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from core.calibration import calibrate, hats, measured_device, never_dearer
from core.cost_model import NO_WORK, CostModel, StepComposition, StepSums
from core.devices import DeviceSpec, device_named
from core.errors import ConfigError
from core.model_spec import SMOLLM2_135M, TINY
from core.models_catalog import model_named
from core.outputs import ModelRunnerOutput, SchedulerOutput, StepTiming
from core.pace import at_pace
from core.records import StepRecord
from core.snapshot import PoolCounts, RooflineCeilings
from core.step_record import StepCounts, StepTimes, build_step_record
from core.step_residuals import between_steps_s, observe
from core.step_timer import (
    KNOTS,
    CalibratedTimer,
    RooflineTimer,
    SlowedTimer,
    StepCoefficients,
    StepTimer,
    predict_composition,
    roofline_coefficients,
    step_seconds,
)
from tests.fake_snapshots import FakeRun

MODEL = CostModel.of(SMOLLM2_135M)
MACHINE = DeviceSpec("two cores", 200e9, 25e9, 16e9, measured=True)
TRUE = StepCoefficients(
    fixed_s=4e-4,
    row_s=2e-6,
    law_s=tuple(
        float(v)
        for v in np.interp(
            KNOTS,
            [2**i for i in range(12)],
            np.cumsum([9e-11, 1e-11, 2e-11, 4e-11, 5e-11, 9e-11, 2e-10, 4e-10, 8e-10, 1.6e-9, 3.2e-9, 6.4e-9]),
        )
    ),
    kv_byte_s=1.4e-10,
    attention_flop_s=2.5e-11,
    swap_byte_s=1e-10,
    host_fixed_s=2e-4,
    host_row_s=6e-6,
    host_token_s=1e-7,
)


def random_steps(count: int, seed: int) -> list[StepComposition]:
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        decoders = int(rng.integers(0, 64)) if rng.random() < 0.9 else 0
        chunk = int(rng.integers(1, 400)) if rng.random() < 0.35 or not decoders else 0
        before = int(rng.integers(0, 1000)) if rng.random() < 0.5 else 0
        queries = (1,) * decoders + ((chunk,) if chunk else ())
        contexts = tuple(int(c) for c in rng.integers(1, 1500, decoders)) + ((before,) if chunk else ())
        samples = (True,) * decoders + ((bool(rng.random() < 0.5),) if chunk else ())
        steps.append(StepComposition(queries, contexts, samples))
    return steps


def record(step: int, columns: StepComposition, timing: StepTiming, model: CostModel = MODEL) -> StepRecord:
    ids = tuple(f"r{i}" for i in range(len(columns.query_tokens)))
    is_prefill = tuple(q > 1 for q in columns.query_tokens)
    output = SchedulerOutput(step, ids, columns.query_tokens, columns.context_before, columns.samples, is_prefill)
    counts = StepCounts(PoolCounts(9, 0, 0, 9), 0, 0, sum(columns.samples), 0, 0, 0, 512, 64)
    times = StepTimes(0.0, 0.0, step_seconds(timing), step_seconds(timing))
    return build_step_record(
        output, ModelRunnerOutput(step, timing=timing), times, counts, model, block_bytes=1.0, kind="measured"
    )


def measured(count: int, seed: int, noise: float = 0.03, outliers: float = 0.05) -> list[StepRecord]:
    rng = np.random.default_rng(seed + 1000)
    timer = CalibratedTimer(MODEL, TRUE)
    out = []
    for i, columns in enumerate(random_steps(count, seed)):
        t = predict_composition(timer, columns)
        factor = float(rng.lognormal(0.0, noise)) * (float(rng.uniform(2, 10)) if rng.random() < outliers else 1.0)
        out.append(record(i, columns, StepTiming(prepare_s=t.prepare_s * factor, forward_s=t.forward_s * factor)))
    return out


def against(timer: CalibratedTimer, truth: CalibratedTimer, steps: list[StepComposition]) -> list[float]:
    pairs = [(step_seconds(predict_composition(timer, c)), step_seconds(predict_composition(truth, c))) for c in steps]
    return [abs(predicted / true - 1.0) for predicted, true in pairs]


def test_a_record_is_read_back_into_its_sums() -> None:
    for i, columns in enumerate(random_steps(50, 7)):
        found = observe(record(i, columns, StepTiming(1e-3, 1e-2)), MODEL)
        assert found is not None
        assert found.run == columns.sums()
        assert found.host_s == pytest.approx(1e-3)
    padded = dataclasses.replace(record(0, StepComposition.decode((5,)), StepTiming(0, 1e-2)), padded_tokens=3)
    assert observe(padded, MODEL) is None


def test_hats_are_the_law() -> None:
    rows = np.array([0, 1, 3, 8, 100, 2048, 4000], dtype=np.float64)
    assert hats(rows) @ np.array(TRUE.law_s) == pytest.approx([TRUE.law(int(n)) for n in rows])


def test_a_known_law_is_found_through_noise_and_outliers() -> None:
    fit = calibrate(measured(1500, 1), MODEL, MACHINE)
    assert fit.held_out is not None
    assert fit.held_out.median < 0.04
    assert abs(fit.held_out.bias) < 0.015
    assert [kind for kind, _ in fit.by_kind] == ["decode", "mixed", "prefill"]
    assert all(errors.median < 0.05 for _, errors in fit.by_kind)
    timer, truth = CalibratedTimer(MODEL, fit.coefficients.of_one_step()), CalibratedTimer(MODEL, TRUE)
    errors = against(timer, truth, random_steps(200, 99))
    assert np.median(errors) < 0.02
    assert np.percentile(errors, 95) < 0.10
    assert max(errors) < 0.40  # rare kinds, e.g. a few prompt tokens without a sampled row


def test_where_no_step_has_been_the_ceilings_stand() -> None:
    """Only lone decodes were seen: the law at 512 rows still rises as the peak says."""
    timer = CalibratedTimer(MODEL, TRUE)
    steps = [StepComposition.decode((100 + i,)) for i in range(60)]
    fit = calibrate([record(i, c, predict_composition(timer, c)) for i, c in enumerate(steps)], MODEL, MACHINE)
    prior = roofline_coefficients(MACHINE, 2.0, 1e12)
    rise = fit.coefficients.law(512) - fit.coefficients.law(256)
    assert rise == pytest.approx(prior.law(512) - prior.law(256), rel=0.05)
    assert fit.error.median < 0.01


def test_a_fit_on_one_model_prices_another_on_the_same_machine() -> None:
    fit = calibrate(measured(1200, 2), MODEL, MACHINE)
    bigger = CostModel.of(model_named("SmolLM2 360M"))
    timer, truth = CalibratedTimer(bigger, fit.coefficients.of_one_step()), CalibratedTimer(bigger, TRUE)
    errors = against(timer, truth, random_steps(100, 5))
    assert np.median(errors) < 0.04
    assert np.percentile(errors, 90) < 0.15


def test_slow_steps_count_in_a_run_and_not_in_a_step() -> None:
    """Every tenth step takes twice as long: the typical step is as before, a run takes a tenth longer."""
    timer = CalibratedTimer(MODEL, TRUE)
    records = []
    for i, step in enumerate(random_steps(600, seed=4)):
        timing = predict_composition(timer, step)
        factor = 2.0 if i % 10 == 9 else 1.0
        slow = StepTiming(prepare_s=timing.prepare_s * factor, forward_s=timing.forward_s * factor)
        records.append(record(i + 1, step, slow))
    found = calibrate(records, MODEL, MACHINE, held_out_every=0)
    assert found.error.median < 0.02
    assert found.coefficients.run_factor == pytest.approx(1.1, abs=0.03)
    one = StepSums(4, 4, 4, 400, 400)
    typical = step_seconds(CalibratedTimer(MODEL, found.coefficients.of_one_step()).predict(one))
    assert found.timer().seconds(one) == pytest.approx(found.coefficients.run_factor * typical + found.coefficients.between_s)


def test_the_law_follows_the_pace_of_the_latest_steps() -> None:
    """The machine slows down by a fifth: what comes next is priced at the new pace, the law's own steps are not."""
    timer = CalibratedTimer(MODEL, TRUE)
    made = [(c, predict_composition(timer, c)) for c in random_steps(900, seed=5)]
    slowed = [
        record(i, c, StepTiming(prepare_s=t.prepare_s * f, forward_s=t.forward_s * f))
        for i, (c, t) in enumerate(made)
        for f in (1.2 if i >= 450 else 1.0,)
    ]
    before = calibrate(slowed[:450], MODEL, MACHINE).coefficients
    assert before.pace == pytest.approx(1.0, abs=0.01)
    after = at_pace(before, slowed[450:], MODEL)
    assert after.pace == pytest.approx(1.2, abs=0.02)
    one = StepSums(4, 4, 4, 400, 400)
    slow, quick = (CalibratedTimer(MODEL, law).seconds(one) for law in (after, before))
    assert slow - after.between_s == pytest.approx(after.pace / before.pace * (quick - before.between_s), rel=0.02)
    assert at_pace(before, slowed[450:455], MODEL) == before, "five steps say nothing"


def test_memory_that_slows_down_makes_no_prompt_dearer() -> None:
    """Reads take a third longer, arithmetic does not: lone decodes follow, a step of many prompt tokens hardly."""
    truth = replace(TRUE, law_s=tuple(v + TRUE.law_s[0] / 3 for v in TRUE.law_s), kv_byte_s=TRUE.kv_byte_s * 4 / 3)
    before = calibrate(measured(600, 2), MODEL, MACHINE).coefficients
    timer = CalibratedTimer(MODEL, truth)
    latest = [record(i, c, predict_composition(timer, c)) for i, c in enumerate(random_steps(300, seed=8))]
    after = CalibratedTimer(MODEL, at_pace(before, latest, MODEL).of_one_step())
    for sums in (StepSums(1, 1, 1, 300, 300), StepSums(4, 4, 4, 800, 800), StepSums(2, 512, 2, 512, 512 * 128)):
        assert after.seconds(sums) == pytest.approx(timer.seconds(sums), rel=0.05), sums
    alone, prompt = StepSums(1, 1, 1, 300, 300), StepSums(2, 512, 2, 512, 512 * 128)
    quick = CalibratedTimer(MODEL, before.of_one_step())
    assert after.seconds(alone) > 1.2 * quick.seconds(alone)
    assert after.seconds(prompt) < 1.06 * quick.seconds(prompt)


def test_half_of_the_steps_are_slower_than_the_law_says_however_noisy_they_are() -> None:
    """Else what bounds lift would pass for a machine that has become quick, and be taken off again."""
    noisy = measured(900, 5, noise=0.5, outliers=0.15)
    found = calibrate(noisy, MODEL, MACHINE, held_out_every=0)
    assert abs(found.fitted.bias) < 1e-6
    assert found.coefficients.pace == pytest.approx(1.0, abs=0.25)


def test_a_row_never_costs_more_than_one_of_a_larger_step() -> None:
    measured = [131, 136, 141, 141, 165, 189, 189, 189, 189, 341, 493, 748, 1002, 1453, 1904, 3600, 6992, 13775, 27342]
    rates = never_dearer(np.array(measured, dtype=float))
    each = rates / np.array(KNOTS)
    assert (np.diff(each) <= 1e-9).all()
    assert (np.diff(rates) >= 0).all()
    assert rates[KNOTS.index(16)] == pytest.approx(16 * 1002 / 64)
    assert rates[[0, KNOTS.index(64), -1]] == pytest.approx([131, 1002, 27342]), "what was in order stays"


CODED = CostModel.of(SMOLLM2_135M, weight_bytes_read=269e6, coded_tokens=8, coded_bytes_read=204e6)
"""A model whose small steps read three quarters of the bytes."""


def test_steps_that_read_a_coded_copy_may_be_cheaper_a_row_than_the_next_larger_ones() -> None:
    law = np.interp(KNOTS, [1, 8, 9, 12, 16, 2048], [60, 70, 85, 90, 115, 14_340])
    assert never_dearer(law, CODED.coded_tokens) == pytest.approx(law)
    assert never_dearer(law)[KNOTS.index(8)] > 75


@pytest.mark.parametrize(("rows", "off"), [((1, 2, 3, 4, 6, 8, 10, 16, 24, 32), 0.03), ((2, 4, 8, 16, 32), 0.06)])
def test_the_step_up_behind_the_coded_ones_is_found_from_few_batch_sizes(rows: tuple[int, ...], off: float) -> None:
    """Lines through 8 and 10 rows else reach 12 far above the truth."""
    law = tuple(float(v) for v in np.interp(KNOTS, [1, 8, 9, 12, 2048], [5e-11, 5.4e-11, 7.0e-11, 7.4e-11, 8.9e-9]))
    timer = CalibratedTimer(CODED, dataclasses.replace(TRUE, law_s=law))
    rng = np.random.default_rng(3)
    seen = []
    for i in range(600):
        columns = StepComposition.decode(tuple(int(c) for c in rng.integers(1, 500, rows[i % len(rows)])))
        seen.append(record(i, columns, predict_composition(timer, columns), CODED))
    found = calibrate(seen, CODED, MACHINE, held_out_every=0)
    unseen = [StepComposition.decode((200,) * n) for n in (5, 7, 9, 11, 12, 14, 20)]
    assert max(against(found.timer(), timer, unseen)) < off


def test_coefficients_must_make_sense() -> None:
    with pytest.raises(ConfigError, match="falls with more rows"):
        dataclasses.replace(TRUE, law_s=(2e-10, *TRUE.law_s[1:]))
    with pytest.raises(ConfigError, match="below 0"):
        dataclasses.replace(TRUE, kv_byte_s=-1.0)
    with pytest.raises(ConfigError, match=f"has {len(KNOTS)} values"):
        dataclasses.replace(TRUE, law_s=(1.0,))
    with pytest.raises(ConfigError, match="at least 24 measured steps, found 3"):
        calibrate(measured(3, 1), MODEL, MACHINE)
    predicted = [dataclasses.replace(r, kind="predicted") for r in measured(30, 1)]
    with pytest.raises(ConfigError, match="found 0"):
        calibrate(predicted, MODEL, MACHINE)


def test_effective_figures() -> None:
    assert TRUE.effective_bandwidth(1, 2.0) == pytest.approx(2.0 / 9e-11)
    assert TRUE.effective_flops(64) == pytest.approx(128 / TRUE.law(64))
    assert TRUE.law(0) == 0.0


def test_probed_ceilings_become_a_device() -> None:
    device = measured_device(RooflineCeilings("this machine", 2e11, 2e10, 9e10, 8_000_000, "bfloat16"), 16e9)
    assert (device.measured, device.ridge_point, device.cache_bandwidth) == (True, 10.0, 9e10)
    assert "measured on this machine" in device.source


def test_a_mixture_reads_what_it_touches() -> None:
    moe = CostModel.of(model_named("Mixtral 8x7B"))
    timer = CalibratedTimer(moe, roofline_coefficients(MACHINE, 2.0, 1e12))
    one, two = (predict_composition(timer, StepComposition.decode((1,) * n)).forward_s for n in (1, 2))
    assert one == pytest.approx(2 * 12.75e9 / 25e9, rel=0.02)
    assert two / one == pytest.approx((3.5 / 2 * 11.27 + 1.48) / 12.75, rel=0.02)


H100 = device_named("H100 SXM")
LLAMA = model_named("Llama 3.1 8B")


@pytest.mark.parametrize(
    "timer",
    [
        RooflineTimer(CostModel.of(LLAMA), H100),
        RooflineTimer(CostModel.of(LLAMA, tensor_parallel=2), H100),
        RooflineTimer(CostModel.of(TINY), replace(MACHINE, cache_bytes=1e9, cache_bandwidth=1e11, step_overhead_s=1e-4)),
        CalibratedTimer(MODEL, replace(TRUE, between_s=1e-3, run_factor=1.07)),
        CalibratedTimer(CostModel.of(model_named("Mixtral 8x7B")), TRUE),
        SlowedTimer(CalibratedTimer(MODEL, TRUE), 1.1),
    ],
    ids=["roofline", "group", "cached", "fitted", "mixture", "slowed"],
)
def test_the_seconds_of_a_step_are_the_sum_of_its_predicted_parts(timer: StepTimer) -> None:
    """What a long simulation asks for is what a page shows part by part."""
    for step in random_steps(40, seed=9):
        for swap, copied in ((0.0, 0.0), (3e6, 0.0), (0.0, 2e5)):
            whole = timer.seconds(step.sums(), swap, copied)
            assert whole == pytest.approx(step_seconds(timer.predict(step.sums(), swap, copied)), rel=1e-12)
    assert timer.seconds(NO_WORK) == pytest.approx(step_seconds(timer.predict(NO_WORK)))


def test_swapped_bytes_take_time() -> None:
    timer = CalibratedTimer(CostModel.of(TINY), TRUE)
    plain = timer.predict(StepComposition.decode((5,)).sums())
    assert timer.predict(StepComposition.decode((5,)).sums(), 1e6).prepare_s == pytest.approx(plain.prepare_s + 1e-4)


def test_time_between_steps_is_part_of_a_run_and_not_of_a_step() -> None:
    base = FakeRun().advance(40).records[-1]
    records = [
        replace(base, step=i, start_s=i * 0.013, duration_s=0.010, forward_s=0.008, num_running=5, finished=0) for i in range(200)
    ]
    assert between_steps_s(records) == pytest.approx(0.003)
    held = [*records[:100], *(replace(r, start_s=r.start_s + 50.0) for r in records[100:])]
    assert between_steps_s(held) == pytest.approx(0.003)
    alone = [replace(r, num_running=1, finished=1) for r in records]
    assert between_steps_s(alone) == 0.0
    law = StepCoefficients(1e-3, 0.0, (1e-12,) * len(KNOTS), 0.0, 0.0, 0.0, between_s=2e-3)
    timer = CalibratedTimer(CostModel.of(TINY), law)
    assert step_seconds(timer.predict(StepSums(1, 1, 1, 10, 10))) > 3e-3
