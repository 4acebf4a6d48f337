"""Fault 50: the predicted time of a step does not depend on its prompt tokens; mixed steps too cheap; host time left out."""

from __future__ import annotations

import itertools

import pytest

from core.cost_model import CostModel, StepComposition
from core.devices import DEVICES, DeviceSpec
from core.model_spec import SMOLLM2_135M
from core.models_catalog import model_named
from core.roofline import IDEAL
from core.step_timer import KNOTS, CalibratedTimer, RooflineTimer, StepCoefficients, StepTimer, predict_composition, step_seconds

SMALL = CostModel.of(SMOLLM2_135M)
LARGE = CostModel.of(model_named("Llama 3.1 8B"))
CPU = DeviceSpec("cpu", 4e11, 3e10, 3e10, step_overhead_s=1e-3)
LAW = StepCoefficients(1e-4, 1e-6, tuple(7e-11 + 1e-11 * i * i for i in range(len(KNOTS))), 1e-10, 1e-11, 1e-10, 2e-4, 5e-6, 1e-7)
TIMERS = {
    "roofline of a CPU": RooflineTimer(SMALL, CPU, IDEAL),
    "roofline of an H100": RooflineTimer(LARGE, DEVICES["H100 SXM"]),
    "fitted law": CalibratedTimer(SMALL, LAW),
}
PROMPTS, DECODERS, CONTEXTS = (0, 1, 64, 512, 2048), (0, 1, 8, 32), (16, 256, 4096)


def seconds(timer: StepTimer, prompt: int, decoders: int, context: int) -> float:
    queries = (1,) * decoders + ((prompt,) if prompt else ())
    before = (context,) * decoders + ((0,) if prompt else ())
    return step_seconds(predict_composition(timer, StepComposition(queries, before, (True,) * len(queries))))


@pytest.mark.parametrize("name", TIMERS)
def test_time_never_falls_with_more_work(name: str) -> None:
    timer = TIMERS[name]
    for decoders, context in itertools.product(DECODERS, CONTEXTS):
        along = [seconds(timer, p, decoders, context) for p in PROMPTS if p or decoders]
        assert along == sorted(along)
    for prompt, context in itertools.product(PROMPTS, CONTEXTS):
        along = [seconds(timer, prompt, d, context) for d in DECODERS if prompt or d]
        assert along == sorted(along)
    for prompt, decoders in itertools.product(PROMPTS, DECODERS[1:]):
        along = [seconds(timer, prompt, decoders, c) for c in CONTEXTS]
        assert along == sorted(along)


@pytest.mark.parametrize("name", TIMERS)
def test_a_long_prompt_takes_clearly_longer_than_one_token(name: str) -> None:
    assert seconds(TIMERS[name], 2048, 0, 16) > 5 * seconds(TIMERS[name], 1, 0, 16)


@pytest.mark.parametrize("name", TIMERS)
def test_a_mixed_step_is_at_least_as_long_as_each_part(name: str) -> None:
    timer = TIMERS[name]
    for prompt, decoders, context in itertools.product(PROMPTS[1:], DECODERS[1:], CONTEXTS):
        mixed = seconds(timer, prompt, decoders, context)
        assert mixed >= max(seconds(timer, prompt, 0, context), seconds(timer, 0, decoders, context))


def test_the_fixed_cost_of_a_step_is_in_the_prediction() -> None:
    one = StepComposition.decode((16,))
    assert predict_composition(TIMERS["roofline of a CPU"], one).prepare_s == 1e-3
    assert predict_composition(TIMERS["fitted law"], one).prepare_s == pytest.approx(2e-4 + 5e-6 + 1e-7)
