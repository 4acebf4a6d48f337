"""Each compiled kernel alone against plain PyTorch or NumPy."""

import ctypes
import os

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from core.runtime.kernels.compiler import KEPT_S, remove_unused, unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.runtime.kernels.emit import KERNELS
from core.runtime.kernels.library import BF16_PAIRS, product_dtype, table_address
from core.runtime.kernels.pack import huge_empty, pack, pack_gate_up, padded

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CODES = {"a": ctypes.c_int64, "f": ctypes.c_float, "v": None}
STORE, ADD, CONTINUE = 0, 1, 2


def kernel(name, dtype="float32"):
    index = next(i for i, k in enumerate(KERNELS) if k.name == name)
    entry = KERNELS[index]
    address = ctypes.c_int64.from_address(table_address(dtype) + 8 * index).value
    return ctypes.CFUNCTYPE(CODES[entry.result], *(CODES[c] for c in entry.arguments))(address)


def at(tensor):
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data


def chain(x, w):
    """x w^T in float64: what one chain of fused multiply-adds approximates."""
    return (x.double() @ w.double().T).float()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", range(1, 7))
def test_a_tile_is_the_product(rows, dtype):
    g = torch.Generator().manual_seed(rows)
    k = 48
    weight = torch.randn(16, k, generator=g).to(DTYPES[dtype])
    x = torch.randn(rows, k, generator=g)
    packed = pack(weight)
    before = torch.randn(rows, 16, generator=g)
    for mode in (STORE, ADD, CONTINUE):
        out = before.clone()
        kernel(f"tile_{rows - 1}", dtype)(at(x), k, packed.address, 0, 64, k, at(out), 16, mode, packed.address, 32, rows % 4)
        expected = chain(x, weight) + (0 if mode == STORE else before)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "rows", "panels"), [("tile_1x4", 1, 4)])
def test_several_panels_at_once_give_the_same_bits_as_one_by_one(name, rows, panels, dtype):
    g = torch.Generator().manual_seed(0)
    k, n = 160, 16 * panels
    weight = torch.randn(n, k, generator=g).to(DTYPES[dtype])
    x = torch.randn(rows, k, generator=g)
    packed = pack(weight)
    wide, narrow = torch.zeros(rows, n), torch.zeros(rows, n)
    step = packed.panel_bytes
    kernel(name, dtype)(at(x), k, packed.address, step, 64, k, at(wide), n, STORE, packed.address, 0, 0)
    for j in range(panels):
        target = at(narrow) + 64 * j
        kernel(f"tile_{rows - 1}", dtype)(at(x), k, packed.address + j * step, 0, 64, k, target, n, STORE, packed.address, 0, 0)
    assert torch.equal(wide, narrow)
    torch.testing.assert_close(wide, chain(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", range(1, 7))
def test_a_listed_tile_takes_rows_from_anywhere(rows, dtype):
    g = torch.Generator().manual_seed(rows)
    slots, width = 7, 32
    values = torch.randn(20, width, generator=g).to(DTYPES[dtype])
    order = torch.randperm(20, generator=g)[:slots]
    size = values.element_size()
    addresses = np.array([at(values) + int(i) * width * size for i in order], np.int64)
    p = torch.rand(rows, slots, generator=g)
    out = torch.ones(rows, 16)
    kernel(f"tile_listed_{rows - 1}", dtype)(at(p), slots, at(addresses), 16 * size, slots, at(out), 16, CONTINUE)
    torch.testing.assert_close(out, 1 + chain(p, values[order, 16:].T), rtol=1e-5, atol=1e-5)


needs_pairs = pytest.mark.skipif(product_dtype("bfloat16") != BF16_PAIRS, reason="this processor multiplies no bfloat16 pairs")


@needs_pairs
@pytest.mark.parametrize("k", [16, 576])
@pytest.mark.parametrize("rows", range(1, 13))
def test_a_tile_of_pairs_is_the_product_and_each_output_the_same_bits_in_any_tile(rows, k):
    g = torch.Generator().manual_seed(rows)
    weight, x = torch.randn(64, k, generator=g).bfloat16(), torch.randn(rows, k, generator=g).bfloat16()
    packed, before = pack(weight), torch.randn(rows, 64, generator=g)
    step = packed.panel_bytes
    for mode in (STORE, ADD, CONTINUE):
        both, one, four = before.clone(), before.clone(), before.clone()
        for j in (0, 2):
            where = (packed.address + j * step, step, 64, k, at(both) + 64 * j, 64, mode, packed.address, 32, rows % 4)
            kernel(f"tile_pair_{rows - 1}", BF16_PAIRS)(at(x), k, *where)
        for row in range(rows):
            for j in range(4):
                where = (packed.address + j * step, 0, 64, k, at(one[row]) + 64 * j, 64, mode, packed.address, 32, rows % 4)
                kernel("tile_0", BF16_PAIRS)(at(x[row]), k, *where)
            where = (packed.address, step, 64, k, at(four[row]), 64, mode, packed.address, 32, rows % 4)
            kernel("tile_1x4", BF16_PAIRS)(at(x[row]), k, *where)
        torch.testing.assert_close(both, chain(x, weight) + (0 if mode == STORE else before), rtol=1e-4, atol=1e-4)
        assert torch.equal(both, one)
        assert torch.equal(both, four)


@needs_pairs
def test_inputs_of_pairs_are_rounded_to_nearest_even():
    g = torch.Generator().manual_seed(4)
    x, weight = torch.randn(128, generator=g), torch.randn(64, generator=g)
    for name, before, after in (
        ("rms_norm", (at(x), at(weight)), (64, 64, 1e-5)),
        ("scale", (at(x),), (64, 0.3)),
        ("silu_mul", (at(x), 128, 4), None),
    ):
        wide, rounded = torch.zeros(64), torch.zeros(64, dtype=torch.bfloat16)
        kernel(name)(*before, at(wide), *(after or (64,)))
        kernel(name, BF16_PAIRS)(*before, at(rounded), *(after or (32,)))
        assert torch.equal(rounded, wide.bfloat16()), name
    scores, packed = x.clone(), x.clone()
    assert kernel("exp_sum")(at(scores), 64, 2.0) == kernel("exp_sum", BF16_PAIRS)(at(packed), 64, 2.0)
    assert torch.equal(packed.view(torch.bfloat16)[:64], scores[:64].bfloat16())


@needs_pairs
@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("rows", range(1, 7))
def test_a_listed_tile_of_pairs_takes_two_rows_at_a_time(rows, slots):
    g = torch.Generator().manual_seed(rows)
    values, order = torch.randn(20, 64, generator=g).bfloat16(), torch.randperm(20, generator=g)[:slots]
    addresses = np.array([at(values) + int(i) * 128 for i in order], np.int64)
    p = torch.zeros(rows, 16, dtype=torch.bfloat16)
    p[:, :slots] = torch.rand(rows, slots, generator=g)
    one, four = torch.ones(rows, 64), torch.ones(rows, 64)
    kernel(f"tile_listed_4_{rows - 1}", BF16_PAIRS)(at(p), 16, at(addresses), 0, slots, at(four), 64, CONTINUE)
    for column in range(0, 64, 16):
        target = at(one) + 4 * column
        kernel(f"tile_listed_{rows - 1}", BF16_PAIRS)(at(p), 16, at(addresses), 2 * column, slots, target, 64, CONTINUE)
    torch.testing.assert_close(four, 1 + chain(p[:, :slots].float(), values[order].T), rtol=1e-5, atol=1e-5)
    assert torch.equal(one, four)


def test_a_row_of_a_tile_does_not_depend_on_its_companions():
    g = torch.Generator().manual_seed(3)
    k = 576
    packed = pack(torch.randn(16, k, generator=g).bfloat16())
    x = torch.randn(6, k, generator=g)
    together = torch.zeros(6, 16)
    kernel("tile_5", "bfloat16")(at(x), k, packed.address, 0, 64, k, at(together), 16, STORE, packed.address, 0, 0)
    for row in range(6):
        alone = torch.zeros(1, 16)
        kernel("tile_0", "bfloat16")(at(x[row]), k, packed.address, 0, 64, k, at(alone), 16, STORE, packed.address, 0, 0)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("words", [8, 32, 64])
def test_transpose_of_listed_rows(words):
    data = np.arange(40 * words, dtype=np.int32).reshape(40, words)
    order = np.random.default_rng(0).permutation(39)[:16]
    addresses = np.array([at(data) + int(i) * words * 4 for i in order], np.int64)
    out = np.zeros((words, 16), np.int32)
    kernel("transpose")(at(addresses), words * 4, words, at(out))  # shifted by one row
    assert np.array_equal(out, data[order + 1].T)


def test_exp_is_exact_to_two_units_in_the_last_place_and_masks_to_zero():
    x = np.concatenate([np.linspace(-87.2, 0, 4093), [-np.inf, -1e30, 0.0]]).astype(np.float32)
    scores = x.copy()
    total = kernel("exp_sum")(at(scores), len(scores), 0.0)
    exact = np.exp(x.astype(np.float64))
    finite = exact > 0
    assert np.max(np.abs(scores[finite] / exact[finite] - 1)) < 3e-7
    assert scores[-3] == 0.0
    assert scores[-2] == 0.0
    assert scores[-1] == 1.0
    assert total == pytest.approx(exact.sum(), rel=1e-6)


def test_mask_hides_what_is_outside_even_nan():
    scores = np.arange(32, dtype=np.float32)
    scores[20:] = np.nan
    scores[2] = np.nan
    assert kernel("mask_max")(at(scores), 32, 3, 20) == 19.0
    assert np.array_equal(np.isfinite(scores), (np.arange(32) >= 3) & (np.arange(32) < 20))
    assert np.all(scores[20:] == -np.inf)


def test_rms_norm_ignores_the_padding():
    g = torch.Generator().manual_seed(1)
    x, weight, out = torch.randn(64, generator=g), torch.randn(64, generator=g), torch.full((64,), 9.0)
    x[50:] = 0
    weight[50:] = 0
    kernel("rms_norm")(at(x), at(weight), at(out), 64, 50, 1e-5)
    expected = x[:50] * torch.rsqrt(x[:50].square().mean() + 1e-5) * weight[:50]
    torch.testing.assert_close(out[:50], expected)
    assert not out[50:].any()


def test_rotate_turns_pairs_half_a_head_apart():
    g = torch.Generator().manual_seed(2)
    x, angle = torch.randn(64, generator=g), torch.rand(32, generator=g)
    cos, sin = angle.cos(), angle.sin()
    low, high = x[:32].clone(), x[32:].clone()
    kernel("rotate")(at(x), at(cos), at(sin), 32)
    torch.testing.assert_close(x, torch.cat([low * cos - high * sin, high * cos + low * sin]))


def test_narrow_rounds_to_nearest_even_like_torch():
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 14, dtype=np.uint64).astype(np.uint32)
    x = torch.from_numpy(bits.view(np.float32).copy())
    out = torch.zeros(len(x), dtype=torch.bfloat16)
    kernel("narrow", "bfloat16")(at(x), at(out), len(x))
    expected = x.bfloat16()
    nan = expected.isnan()
    assert torch.equal(out[~nan].view(torch.int16), expected[~nan].view(torch.int16))
    assert out[nan].isnan().all()
    back = torch.zeros(len(x))
    kernel("widen", "bfloat16")(at(out), at(back), len(x))
    assert torch.equal(back[~nan], expected[~nan].float())


def test_silu_mul():
    both, out = torch.stack([torch.linspace(-100, 100, 320), torch.linspace(-3, 2, 320)]), torch.full((20, 24), 7.0)
    rows = both.view(2, 20, 16).transpose(0, 1).contiguous()  # of 16 gates, then 16 ups
    kernel("silu_mul")(at(rows), 128, 20, at(out), 96)
    expected = torch.nn.functional.silu(rows[:, 0]) * rows[:, 1]
    torch.testing.assert_close(out[:, :16], expected, rtol=2e-6, atol=1e-7)
    assert (out[:, 16:] == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(16, 16), (40, 50), (301, 64)])
def test_packing_pads_with_zeros_and_loses_nothing(n, k, dtype):
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n)).to(DTYPES[dtype])
    packed = pack(weight)
    assert packed.k == padded(k)
    assert packed.panels * 16 == padded(n)
    assert packed.panel_bytes * packed.panels == packed.data.numel() * packed.data.element_size()
    unpacked = packed.data.transpose(1, 2).reshape(packed.panels * 16, packed.k)
    assert torch.equal(unpacked[:n, :k], weight)
    assert not unpacked[n:].any()
    assert not unpacked[:, k:].any()


def test_gate_and_up_panels_alternate():
    weight = torch.randn(2 * 20, 16)
    packed = pack_gate_up(weight)
    unpacked = packed.data.transpose(1, 2).reshape(-1, 16)
    assert packed.panels == 4
    assert torch.equal(unpacked[:16], weight[:16])
    assert torch.equal(unpacked[16:32], weight[20:36])
    assert torch.equal(unpacked[32:36], weight[16:20])
    assert torch.equal(unpacked[48:52], weight[36:40])


def test_huge_pages_are_ordinary_memory():
    big = huge_empty((3, 1 << 20), torch.float32)
    big.fill_(2.5)
    assert big.shape == (3, 1 << 20)
    assert float(big.sum()) == 2.5 * (3 << 20)


def test_compiled_code_of_other_versions_goes_a_week_after_its_last_use(tmp_path):
    own, recent, old, foreign = (tmp_path / name for name in ("kernels-1", "kernels-2", "kernels-3", "models"))
    for folder in (own, recent, old, foreign):
        folder.mkdir()
        (folder / "file").write_text("")
    now_s = own.stat().st_mtime
    os.utime(recent, (now_s - KEPT_S + 60, now_s - KEPT_S + 60))
    for folder in (old, foreign):
        os.utime(folder, (now_s - KEPT_S - 60, now_s - KEPT_S - 60))
    assert remove_unused(own) == [old]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernels-1", "kernels-2", "models"]
