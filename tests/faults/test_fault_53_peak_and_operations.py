"""Fault 53: the sparse peak, or multiply-adds counted once against a peak that counts two."""

from __future__ import annotations

import pytest

from core import step_composition
from core.cost_model import CostModel, StepComposition
from core.devices import DEVICES
from core.model_spec import ModelSpec
from core.roofline import roofline_time

ONE_MATRIX = ModelSpec(
    name="head", vocab_size=256, hidden_size=128, intermediate_size=64, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64
)


def test_a_multiply_add_is_two_operations() -> None:
    """The head's product of 64 sampled rows: 64x128 by 128x256."""
    step = StepComposition((1,) * 64, (0,) * 64, (True,) * 64)
    assert CostModel.of(ONE_MATRIX).cost(step).logits_flops == 2 * 64 * 128 * 256


def test_causal_attention_counts_no_masked_key() -> None:
    """Scores and weighted sum are 2 operations a key each: 4 * heads * d * L * (L + 1) / 2."""
    length = 33
    cost = CostModel.of(ONE_MATRIX).cost(StepComposition.prefill(length))
    assert cost.attention_flops == 4 * 1 * 64 * length * (length + 1) / 2
    assert "masked half not counted" in (step_composition.__doc__ or "").replace("\n", " ")


def test_peaks_are_dense() -> None:
    assert DEVICES["H100 SXM"].peak_flops == 989e12
    assert DEVICES["A100 80 GB SXM"].peak_flops == 312e12
    assert DEVICES["L4"].peak_flops == 121e12


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=lambda d: d.name)
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_utilisation_never_above_one(device, tokens: int) -> None:
    cost = CostModel.of(ONE_MATRIX).cost(StepComposition.prefill(tokens))
    time = roofline_time(cost, device).total_s
    assert cost.flops <= time * device.peak_flops * (1 + 1e-12)
    assert cost.device_bytes <= time * device.memory_bandwidth * (1 + 1e-12)
