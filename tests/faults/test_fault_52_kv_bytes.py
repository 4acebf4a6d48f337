"""Fault 52: KV traffic or size computed from query heads, or with a stray factor."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from core.cost_model import CostModel, StepComposition
from core.model_spec import ModelSpec

SPEC = ModelSpec(
    name="grouped", vocab_size=64, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=8, num_kv_heads=2, head_dim=16
)


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "dtype", "right"),
    [
        (2, 16, "bfloat16", 256), (1, 16, "bfloat16", 128), (8, 16, "bfloat16", 1024), (2, 16, "float32", 512),
        (2, 32, "bfloat16", 512),  # head size is not hidden / heads
    ],
)  # fmt: skip
def test_bytes_of_a_token(kv_heads: int, head_dim: int, dtype: str, right: int) -> None:
    spec = dataclasses.replace(SPEC, num_kv_heads=kv_heads, head_dim=head_dim)
    assert spec.kv_bytes_per_token(dtype) == right
    cost = CostModel.of(spec, kv_dtype=dtype).cost(StepComposition.decode((9, 19)))
    assert cost.kv_read_bytes == (10 + 20) * right
    assert cost.kv_write_bytes == 2 * right


def test_equal_to_the_bytes_of_a_real_cache() -> None:
    blocks, block_size = 5, 4
    value = np.dtype(np.float16)  # as wide as bfloat16
    layer = [np.zeros((blocks, block_size, SPEC.num_kv_heads, SPEC.head_dim), value) for _ in ("keys", "values")]
    stored = SPEC.num_layers * sum(tensor.nbytes for tensor in layer)
    assert stored / (blocks * block_size) == SPEC.kv_bytes_per_token("bfloat16") == 256
