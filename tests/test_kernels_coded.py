"""Weights whose exponents are coded: nothing is lost, and a small step gives the bits that the plain panels give."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from core.runtime.kernels.compiler import unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.clock import StepClock
from core.config import CacheConfig
from core.cost_model import CostModel
from core.model_spec import TINY
from core.runtime.kernels import panels
from core.runtime.kernels.backend import KernelBackend
from core.runtime.kernels.coding import decode, encode, header_bytes
from core.runtime.kernels.library import BF16_PAIRS
from core.runtime.kernels.pack import pack
from core.runtime.kernels.unpack import FEW_ROWS
from core.runtime.model_runner import ModelRunner
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource
from core.step_composition import StepSums
from core.step_timer import KNOTS
from tests.test_kernels_backend import CPU, SPECS, Rig, ids
from tests.test_kernels_library import CONTINUE, STORE, at, kernel, needs_pairs


def weights(seed, n, k, odd=0):
    """Bell-shaped weights, `odd` of them with exponents of their own."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(n, k, generator=g) * 0.05
    for _ in range(odd):
        row, column, exponent = (int(torch.randint(0, top, (1,), generator=g)) for top in (n, k, 60))
        w[row, column] = -(2.0 ** (exponent - 90))
    return w.bfloat16()


def bits(tensor):
    return tensor.view(torch.int16)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 50), k=st.integers(1, 200), odd=st.integers(0, 6))
def test_what_is_coded_comes_back_bit_by_bit(seed, n, k, odd):
    plain = pack(weights(seed, n, k, odd))
    coded = encode(plain)
    assert coded is not None
    assert torch.equal(bits(decode(coded)), bits(plain.data))


def test_every_special_number_survives():
    w = torch.zeros(16, 16).bfloat16()
    w[0, :8] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -3e38, 1.0]).bfloat16()
    plain = pack(w)
    assert torch.equal(bits(decode(encode(plain))), bits(plain.data))


def test_three_quarters_of_the_bytes_remain_and_wild_exponents_are_refused():
    plain = pack(weights(0, 64, 2048))
    assert encode(plain).panel_bytes == 0.75 * plain.panel_bytes + header_bytes(2048)
    wild = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 16, (16, 2048)).astype(np.uint16).view(np.int16))
    assert encode(pack(wild.view(torch.bfloat16))) is None
    with pytest.raises(ValueError, match="float32"):
        encode(pack(torch.zeros(16, 16)))


@needs_pairs
@pytest.mark.parametrize("k", [16, 48, 576, 1040])
def test_the_kernel_unpacks_what_the_reference_decodes(k):
    plain = pack(weights(k, 32, k, odd=5))
    coded = encode(plain)
    out = torch.zeros_like(plain.data)
    for panel in range(coded.panels):
        for first in range(0, k // 8, 5):
            units = min(5, k // 8 - first)
            place = at(out[panel]) + first * 256
            kernel("unpack", BF16_PAIRS)(coded.address + panel * coded.panel_bytes, place, header_bytes(k), first, units)
    assert torch.equal(bits(out), bits(plain.data))


@needs_pairs
@pytest.mark.parametrize("rows", range(1, FEW_ROWS + 1))
def test_a_coded_tile_gives_the_bits_of_the_plain_one(rows):
    k = 64
    plain = pack(weights(rows, 32, k))
    coded = encode(plain)
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).bfloat16()
    before = torch.randn(rows, 32)
    for mode in (STORE, CONTINUE):
        expected, found = before.clone(), before.clone()
        tail = (64, k, at(expected), 32, mode, plain.address, 0, 0)
        kernel(f"tile_pair_{rows - 1}", BF16_PAIRS)(at(x), k, plain.address, plain.panel_bytes, *tail)
        where = (coded.address, coded.panel_bytes, header_bytes(k))
        kernel(f"coded_pair_{rows - 1}", BF16_PAIRS)(at(x), k, *where, 0, 3, at(found), 32, mode, coded.address)
        kernel(f"coded_pair_{rows - 1}", BF16_PAIRS)(at(x), k, *where, 3, 5, at(found), 32, CONTINUE, coded.address)
        assert torch.equal(found, expected)


def with_patches(spec):
    """Weights that need patches in every matrix."""
    loaded = SyntheticSource(spec, 1).weights(torch.bfloat16, CPU, 512)
    for index, layer in enumerate(loaded.layers):
        for part, linear in enumerate((layer.qkv, layer.o, layer.gate_up, layer.down)):
            n, k = linear.weight.shape
            for j in range(4):
                linear.weight[(7 * j + part) % n, (11 * j + index) % k] = 2.0 ** (-60 - 3 * j)
    return loaded


@needs_pairs
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_small_steps_give_the_bits_of_the_plain_panels(spec, threads):
    coded, plain = (
        Rig(spec, KernelBackend(threads=threads, coded=coded), torch.bfloat16, weights=with_patches(spec))
        for coded in (True, False)
    )
    assert (coded.backend.coded_tokens, plain.backend.coded_tokens) == (FEW_ROWS, 0)
    for tokens in SMALL_AND_LARGE:
        assert torch.equal(coded.step(tokens), plain.step(tokens))


SMALL_AND_LARGE = [
    {0: ids(1, 1)},
    {0: ids(2, 1), 1: ids(3, 5)},
    {0: ids(4, 40), 1: ids(5, 1), 2: ids(6, 30)},
    {0: ids(7, 1), 1: ids(8, 1), 2: ids(9, 1), 3: ids(10, FEW_ROWS - 3)},
    {0: ids(11, FEW_ROWS + 1)},
    {3: ids(12, 1)},
]


@needs_pairs
def test_the_bytes_of_a_step_are_those_of_the_panels_that_it_reads():
    loaded = SyntheticSource(TINY, 1).weights(torch.bfloat16, CPU, 512)
    backend = KernelBackend(threads=2)
    info = ModelRunner(TINY, loaded, backend, CacheConfig(num_blocks=8), clock=StepClock()).info
    assert info.coded_tokens == FEW_ROWS
    assert 0.7 * info.weight_bytes_read < info.coded_bytes_read < info.weight_bytes_read
    assert info.weight_bytes == info.weight_bytes_read + backend.coded_bytes
    assert "coded without loss" in info.kernels
    cost = CostModel.of(
        TINY, weight_bytes_read=info.weight_bytes_read, coded_tokens=info.coded_tokens, coded_bytes_read=info.coded_bytes_read
    )
    sizes = (FEW_ROWS, FEW_ROWS + 1)
    small, large = (StepSums(rows=n, query_tokens=n, context_tokens=9 * n, attended_tokens=9 * n, sampled=n) for n in sizes)
    looked_up = cost.embedding_row_bytes
    assert cost.weight_bytes(small) == pytest.approx(info.coded_bytes_read + looked_up * FEW_ROWS)
    assert cost.weight_bytes(large) == pytest.approx(info.weight_bytes_read + looked_up * (FEW_ROWS + 1))


@needs_pairs
def test_a_machine_with_little_memory_keeps_no_copy():
    loaded = SyntheticSource(TINY, 1).weights(torch.bfloat16, CPU, 512)
    plain = panels.pack_model(loaded, int8=False)
    assert panels.code_model(loaded, plain, 100 * plain.num_bytes) is not None
    assert panels.code_model(loaded, plain, 5 * plain.num_bytes) is None


@needs_pairs
def test_weights_that_cannot_be_coded_are_read_as_they_are():
    spec = dataclasses.replace(TINY, num_layers=1)
    loaded = SyntheticSource(spec, 1).weights(torch.bfloat16, CPU, 512)
    weight = loaded.layers[0].down.weight
    weight.copy_((2.0 ** (torch.arange(weight.numel()) % 100 - 90).float()).view_as(weight).bfloat16())
    runner = ModelRunner(spec, loaded, KernelBackend(threads=2), CacheConfig(num_blocks=8), clock=StepClock())
    assert (runner.info.coded_tokens, runner.info.coded_bytes_read) == (0, 0)
    assert "coded" not in runner.info.kernels


def test_the_fitted_law_may_step_up_where_the_coded_steps_end():
    assert {FEW_ROWS, FEW_ROWS + 1} <= set(KNOTS)


def test_a_runner_describes_itself_anew_only_when_something_changed():
    class Renamed(PlainBackend):
        name = "first"

    backend = Renamed()
    loaded = SyntheticSource(TINY, 1).weights(torch.float32, CPU, 512)
    runner = ModelRunner(TINY, loaded, backend, CacheConfig(num_blocks=8), clock=StepClock())
    first = runner.info
    assert runner.info is first
    backend.name = "second"
    assert runner.info.kernels == "second"
    runner.resize(16, 16, 0)
    assert runner.info.num_blocks == 16
