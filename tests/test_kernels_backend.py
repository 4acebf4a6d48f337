"""The compiled step against the plain model, and against itself in other company."""

import dataclasses
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from core.model_spec import SMOLLM2_135M, TINY
from core.runtime.backend import KVCache, StepBatch
from core.runtime.model import DecoderModel
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource

pytest.importorskip("numba")

from core.runtime.kernels.backend import KernelBackend, create_backend, unsupported_reason
from core.runtime.kernels.compiler import unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.runtime.kernels.library import BF16_PAIRS, product_dtype

CPU = torch.device("cpu")
WIDE = dataclasses.replace(
    TINY, name="wide", attention_bias=True, output_bias=True, qk_norm=True, num_heads=6, num_kv_heads=2, intermediate_size=100,
    vocab_size=301, tie_word_embeddings=False,
)  # fmt: skip
SPECS = {
    "tied": TINY,
    "biases, head norms, odd sizes": WIDE,
    "window": dataclasses.replace(TINY, sliding_window=20),
    "more rows than a chunk": dataclasses.replace(TINY, num_layers=2, hidden_size=512, intermediate_size=1100),
    "one kv head": dataclasses.replace(TINY, num_heads=7, num_kv_heads=1, head_dim=32, hidden_size=96),
}
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 0.05}
"""Share of the largest logit: float32 differs by the order of additions, bfloat16 by the roundings of the plain path."""


class Rig:
    """A model with its own NaN-filled cache and the rows that it has been fed."""

    def __init__(self, spec, backend, dtype=torch.float32, block_size=16, rows=4, seed=0, weights=None):
        self.spec, self.block_size = spec, block_size
        weights = weights or SyntheticSource(spec, 1).weights(dtype, CPU, 512)
        self.model = DecoderModel(spec, weights, backend)
        self.backend = backend
        width = -(-256 // block_size)
        num_blocks = rows * width
        shape = (spec.num_layers, num_blocks + 1, spec.num_kv_heads, block_size, spec.head_dim)
        nan = float("nan")
        self.cache = KVCache(torch.full(shape, nan, dtype=dtype), torch.full(shape, nan, dtype=dtype))
        self.model.bind_cache(self.cache)
        order = np.random.default_rng(seed).permutation(num_blocks)
        self.tables = order.reshape(rows, width).astype(np.int32)
        self.lens = [0] * rows

    def step(self, tokens):
        """tokens: {row: list of new token ids}; returns logits of each row's last token."""
        size = self.block_size
        flat, positions, slots, row_of, starts, wanted = [], [], [], [], [0], []
        for index, (row, new) in enumerate(tokens.items()):
            for token in new:
                place = self.lens[row]
                flat.append(token)
                positions.append(place)
                slots.append(int(self.tables[row, place // size]) * size + place % size)
                row_of.append(index)
                self.lens[row] += 1
            starts.append(len(flat))
            wanted.append(len(flat) - 1)
        rows = list(tokens)
        batch = StepBatch(
            np.array(flat, np.int32), np.array(positions, np.int32), np.array(slots, np.int64), np.array(row_of, np.int32),
            np.array(starts, np.int32), np.array([self.lens[r] for r in rows], np.int32),
            np.ascontiguousarray(self.tables[rows]), np.array(wanted, np.int64),
        )  # fmt: skip
        return self.model.forward(batch).float().clone()


KINDS = {"float32": (torch.float32, False), "bfloat16": (torch.bfloat16, False), "bfloat16, widened": (torch.bfloat16, True)}
"""(dtype, widen): bfloat16 multiplies pairs where the processor can, and the widening products are tested there too."""


def fast(threads=2, widen=False):
    return KernelBackend(wait=True, threads=threads, widen=widen)


def ids(seed, n, vocab=256):
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


SCENARIO = [
    {0: ids(0, 7)},
    {0: ids(1, 1), 1: ids(2, 33)},
    {0: ids(3, 1), 1: ids(4, 1), 2: ids(5, 150), 3: ids(6, 1)},
    {r: ids(7 + r, 1) for r in range(4)},
    {3: ids(11, 40), 1: ids(12, 20), 0: ids(13, 1)},
    {r: ids(14 + r, 1) for r in range(4)},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_the_compiled_step_equals_the_plain_model(spec, block_size, kind):
    dtype, widen = KINDS[kind]
    plain, quick = (Rig(spec, b, dtype, block_size) for b in (PlainBackend(), fast(widen=widen)))
    assert quick.backend.name.startswith("compiled kernels")
    for tokens in SCENARIO:
        expected, found = plain.step(tokens), quick.step(tokens)
        assert found.isfinite().all()
        assert (found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
    written = ~plain.cache.key.isnan()
    assert torch.equal(written, ~quick.cache.key.isnan()), "the same slots hold keys"
    scale = plain.cache.value[written].float().abs().max()
    for a, b in ((plain.cache.key, quick.cache.key), (plain.cache.value, quick.cache.value)):
        assert (a[written].float() - b[written].float()).abs().max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_row_gives_the_same_bits_alone_in_company_and_in_chunks(spec, kind):
    prompt, more = ids(1, 150), ids(2, 3)
    dtype, widen = KINDS[kind]
    alone = Rig(spec, fast(widen=widen), dtype)
    expected = [alone.step({0: prompt}), *(alone.step({0: [t]}) for t in more)]

    chunked = Rig(spec, fast(1, widen), dtype, seed=5)
    for first in range(0, 150, 37):
        last = chunked.step({2: prompt[first : first + 37]})
    assert torch.equal(last, expected[0])

    company = Rig(spec, fast(widen=widen), dtype, block_size=5, seed=9)
    company.step({3: ids(3, 21), 0: ids(4, 2)})
    first = company.step({1: prompt, 3: ids(5, 1), 0: ids(6, 90)})
    assert torch.equal(first[:1], expected[0])
    for token, logits in zip(more, expected[1:], strict=True):
        assert torch.equal(company.step({0: ids(8, 1), 3: ids(9, 1), 1: [token]})[2:], logits)

    one_by_one = Rig(spec, fast(widen=widen), dtype)
    for token in prompt:
        last = one_by_one.step({0: [token]})
    assert torch.equal(last, expected[0])


def test_bfloat16_is_multiplied_in_pairs_exactly_where_the_processor_can():
    native, widened = (Rig(TINY, fast(widen=w), torch.bfloat16).backend for w in (False, True))
    pairs = product_dtype("bfloat16") == BF16_PAIRS
    assert native.name.removesuffix(f", weights coded without loss up to {native.coded_tokens} rows") == (
        "compiled kernels, 2 threads" + (", bfloat16 products" if pairs else "")
    )
    assert widened.name == "compiled kernels, 2 threads"
    assert product_dtype("float32") == "float32"


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_no_bit(threads):
    for dtype in TOLERANCE:
        two, other = Rig(TINY, fast(2), dtype), Rig(TINY, fast(threads), dtype)
        for tokens in SCENARIO:
            assert torch.equal(two.step(tokens), other.step(tokens))


def test_a_padded_rectangle_equals_the_ragged_batch():
    """Padding tokens write to the scratch block and stand at position 0; slots beyond a row's own are never read into it."""
    counts, width, size = [9, 4, 17], 17, 16
    prompts = [ids(i, n) for i, n in enumerate(counts)]
    ragged = Rig(TINY, fast())
    expected = ragged.step(dict(enumerate(prompts)))
    rig = Rig(TINY, fast())
    scratch = rig.cache.scratch_block
    tokens, positions = np.zeros((4, width), np.int32), np.zeros((4, width), np.int32)
    slots = np.full((4, width), scratch * size, np.int64)
    tables = np.full((4, 2), scratch, np.int32)
    for row, prompt in enumerate(prompts):
        n = len(prompt)
        tokens[row, :n] = prompt
        positions[row, :n] = np.arange(n)
        tables[row] = rig.tables[row, :2]
        slots[row, :n] = tables[row, positions[row, :n] // size].astype(np.int64) * size + positions[row, :n] % size
    starts = np.arange(0, 4 * width + 1, width, dtype=np.int32)
    wanted = np.array([row * width + n - 1 for row, n in enumerate(counts)], np.int64)
    batch = StepBatch(
        tokens.ravel(), positions.ravel(), slots.ravel(), np.repeat(np.arange(4, dtype=np.int32), width), starts,
        np.full(4, 31, np.int32), tables, wanted, padded=True,
    )  # fmt: skip
    assert torch.equal(rig.model.forward(batch), expected)


def test_the_plain_path_serves_until_the_kernels_are_ready_and_the_cache_goes_over():
    late = Rig(TINY, KernelBackend(wait=False))
    reference = Rig(TINY, PlainBackend())
    late.backend.wait()
    prepared, late.backend._built = late.backend._built, None  # as if the compiler were still at work
    for index, tokens in enumerate(SCENARIO):
        if index == 3:
            assert late.backend.name.startswith("plain PyTorch")
            late.backend._built = prepared
        expected = reference.step(tokens)
        assert (late.step(tokens) - expected).abs().max() <= 5e-5 * expected.abs().max()
    assert late.backend.name.startswith("compiled kernels")


def test_a_resized_cache_is_used_at_once():
    rig = Rig(TINY, fast())
    expected = rig.step({0: ids(0, 20)})
    other = Rig(TINY, fast(), block_size=8)
    rig.cache, rig.tables, rig.block_size, rig.lens = other.cache, other.tables, 8, [0] * 4
    rig.model.bind_cache(rig.cache)
    assert torch.equal(rig.step({0: ids(0, 20)}), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 8}, "multiples of 16"),
        ({"hidden_size": 72}, "multiples of 16"),
        ({"num_heads": 160, "num_kv_heads": 160}, "at most 144"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, "dense"),
    ],
)
def test_what_the_kernels_cannot_run_is_said_and_left_to_the_plain_path(change, said):
    spec = dataclasses.replace(TINY, **change)
    assert said in unsupported_reason(spec, torch.float32, CPU)
    assert create_backend(spec, torch.float32, CPU) is None


def test_other_dtypes_and_devices_are_left_to_others():
    assert "float16" in unsupported_reason(TINY, torch.float16, CPU)
    assert "cuda" in unsupported_reason(TINY, torch.float32, torch.device("cuda"))
    assert isinstance(create_backend(SMOLLM2_135M, torch.bfloat16, CPU), KernelBackend)


def test_a_compiler_failure_leaves_the_plain_path_and_is_told(monkeypatch, caplog):
    def broken(*args):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("core.runtime.kernels.fast_path.compile_all", broken)
    rig = Rig(TINY, KernelBackend(wait=True))
    assert "no such instruction" in rig.backend.name
    assert "no such instruction" in caplog.text
    assert rig.step({0: ids(0, 5)}).isfinite().all()


def test_closing_waits_for_no_compiler_and_drops_what_it_makes(monkeypatch):
    from core.runtime.kernels import fast_path

    may_end, compile_all = threading.Event(), fast_path.compile_all

    def slow(*args):
        assert may_end.wait(60)
        return compile_all(*args)

    monkeypatch.setattr(fast_path, "compile_all", slow)
    rig = Rig(TINY, KernelBackend(wait=False))
    rig.backend.close()
    assert not may_end.is_set(), "closed while the compiler was at work"
    may_end.set()
    rig.backend.wait()
    assert rig.backend._built is None


def test_helper_threads_do_not_keep_the_process_alive():
    code = "from core.runtime.kernels.fast_path import compile_all\ncompile_all(('float32',), 3)\nprint('done')\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_largest_logit_is_found_on_the_way(name, threads):
    rig = Rig(SPECS[name], KernelBackend(wait=True, threads=threads), rows=4)
    for tokens in ({0: [5, 6, 7]}, {0: [1], 1: [9, 8], 2: [4] * 20, 3: [11]}, {0: [2], 1: [3], 2: [4], 3: [5]}):
        logits = rig.step(tokens).numpy()
        ids, values, finite = rig.backend.best_tokens()
        assert ids.tolist() == logits.argmax(axis=1).tolist()
        assert values.tolist() == logits.max(axis=1).tolist()
        assert finite


def test_of_equal_logits_the_first_is_found_and_a_broken_one_shows():
    for first in (0.0, float("nan")):
        source = SyntheticSource(WIDE, 1).weights(torch.float32, CPU, 512)
        source.head.weight.zero_()
        source.head.weight[17] = first
        rig = Rig(WIDE, PlainBackend())
        rig.model = DecoderModel(WIDE, source, KernelBackend(wait=True, threads=2))
        rig.model.bind_cache(rig.cache)
        rig.step({0: [1, 2], 1: [3]})
        ids, values, finite = rig.model.backend.best_tokens()
        if first == 0.0:
            assert (ids.tolist(), values.tolist()) == ([0, 0], [0.0, 0.0])
        else:
            assert np.isnan(values).all()
        assert finite is (first == 0.0)


def test_a_step_on_the_plain_path_names_no_best_tokens():
    rig = Rig(TINY, PlainBackend())
    rig.step({0: [1]})
    assert rig.backend.best_tokens() is None
