"""int8 weights: products equal those of the rounded weights, and the model stays close to the unrounded one."""

import pytest
import torch

pytest.importorskip("numba")

from core.errors import ConfigError
from core.runtime.kernels.backend import KernelBackend, create_backend
from core.runtime.kernels.compiler import unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.clock import StepClock
from core.config import CacheConfig
from core.model_spec import TINY
from core.runtime.kernels.library import INT8_BF16_PAIRS
from core.runtime.kernels.pack import pack, quantise
from core.runtime.model_runner import ModelRunner
from core.runtime.synthetic import SyntheticSource
from tests.test_kernels_backend import CPU, SCENARIO, Rig, ids
from tests.test_kernels_library import STORE, at, chain, kernel, needs_pairs


def test_rounding_is_within_half_a_step_and_a_row_of_zeros_stays_zero():
    weight = torch.randn(33, 64, generator=torch.Generator().manual_seed(0))
    weight[5] = 0
    q, scale = quantise(weight)
    assert ((q * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    assert not q[5].any()
    assert q.abs().max() == 127


@pytest.mark.parametrize(("name", "rows", "panels"), [*((f"tile_{m - 1}", m, 1) for m in range(1, 7)), ("tile_1x4", 1, 4)])
def test_a_tile_multiplies_by_the_rounded_weights(name, rows, panels):
    g = torch.Generator().manual_seed(rows)
    k, n = 96, 16 * panels
    weight, x = torch.randn(n, k, generator=g), torch.randn(rows, k, generator=g)
    packed = pack(weight, int8=True)
    assert packed.panel_bytes == 64 + 16 * k
    out = torch.zeros(rows, n)
    kernel(name, "int8")(at(x), k, packed.address, packed.panel_bytes, 64, k, at(out), n, STORE, packed.address, 0, 0)
    q, scale = quantise(weight)
    torch.testing.assert_close(out, chain(x, q * scale[:, None]), rtol=1e-5, atol=1e-5)


@needs_pairs
@pytest.mark.parametrize(
    ("name", "rows", "panels"),
    [*((f"tile_{m - 1}", m, 1) for m in range(1, 7)), *((f"tile_pair_{m - 1}", m, 2) for m in range(1, 13)), ("tile_1x4", 1, 4)],
)
def test_a_tile_of_pairs_multiplies_by_the_rounded_weights(name, rows, panels):
    g = torch.Generator().manual_seed(rows)
    k, n = 96, 16 * panels
    weight, x = torch.randn(n, k, generator=g), torch.randn(rows, k, generator=g).bfloat16()
    packed, out = pack(weight, int8=True), torch.zeros(rows, n)
    kernel(name, INT8_BF16_PAIRS)(at(x), k, packed.address, packed.panel_bytes, 64, k, at(out), n, STORE, packed.address, 0, 0)
    q, scale = quantise(weight)
    torch.testing.assert_close(out, chain(x.float(), q * scale[:, None]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_step_equals_a_model_whose_weights_were_rounded_beforehand(dtype):
    int8 = Rig(TINY, KernelBackend(weight_dtype="int8", threads=2), dtype)
    rounded = Rig.__new__(Rig)
    rounded.__dict__.update(Rig(TINY, KernelBackend(threads=2), torch.float32).__dict__)
    weights = SyntheticSource(TINY, 1).weights(dtype, CPU, 512)
    assert "int8" in int8.backend.name
    from core.runtime.backend import KVCache, LinearWeight
    from core.runtime.model import DecoderModel

    def as_rounded(linear):
        q, scale = quantise(linear.weight)
        return LinearWeight(q * scale[:, None], None if linear.bias is None else linear.bias.float())

    weights.head = as_rounded(weights.head)
    weights.embedding = weights.embedding.float()
    weights.final_norm = weights.final_norm.float()
    for layer in weights.layers:
        for part in ("qkv", "o", "gate_up", "down"):
            setattr(layer, part, as_rounded(getattr(layer, part)))
        layer.input_norm, layer.post_norm = layer.input_norm.float(), layer.post_norm.float()
    rounded.model = DecoderModel(TINY, weights, KernelBackend(threads=2))
    shape = int8.cache.key.shape
    rounded.cache = KVCache(torch.zeros(shape), torch.zeros(shape))
    rounded.model.bind_cache(rounded.cache)
    tolerance = 5e-5 if dtype is torch.float32 else 0.03  # a bfloat16 cache rounds keys and values
    for tokens in SCENARIO:
        expected, found = rounded.step(tokens), int8.step(tokens)
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_stay_independent_of_their_company(dtype):
    alone, company = (Rig(TINY, KernelBackend(weight_dtype="int8", threads=2), dtype) for _ in range(2))
    expected = alone.step({0: ids(1, 60)})
    assert torch.equal(company.step({1: ids(1, 60), 2: ids(2, 31), 0: ids(3, 1)})[:1], expected)


def test_the_bytes_that_a_step_reads_are_those_of_the_packed_weights():
    def runner(weight_dtype):
        weights = SyntheticSource(TINY, 1).weights(torch.float32, CPU, 512)
        backend = create_backend(TINY, torch.float32, CPU, weight_dtype, wait=True)
        return ModelRunner(TINY, weights, backend, CacheConfig(num_blocks=8), clock=StepClock())

    full, small = runner("same").info, runner("int8").info
    matrices = TINY.num_layers * (TINY.attention_parameters_per_layer + TINY.mlp_parameters_per_expert) + TINY.head_parameters
    outputs = TINY.num_layers * (TINY.q_size + 2 * TINY.kv_size + 2 * TINY.hidden_size + 2 * TINY.intermediate_size)
    scales = 4 * (outputs + TINY.vocab_size)
    assert full.weight_bytes_read - small.weight_bytes_read == 3 * matrices - scales


def test_without_a_compiler_int8_is_refused_rather_than_served_in_another_precision(monkeypatch):
    def broken(*args):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("core.runtime.kernels.fast_path.compile_all", broken)
    with pytest.raises(ConfigError, match="no such instruction"):
        Rig(TINY, KernelBackend(weight_dtype="int8"))
