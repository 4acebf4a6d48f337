"""The Triton kernels against plain arithmetic: on the device where there is one, else in Triton's interpreter on the CPU.

The interpreter runs a kernel's own source with numpy, so indices, masks, the online softmax and the cut of the context are
what is tested; that the compiler accepts every kernel for real devices is a test of its own, which needs no device either.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: the CPU build of PyTorch brings none")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("without a device the kernels run in Triton's interpreter: TRITON_INTERPRET=1", allow_module_level=True)

import triton.language as tl

from core.model_spec import TINY, ModelSpec
from core.runtime.backend import KVCache, ModelWeights, StepBatch
from core.runtime.gpu import triton_check
from core.runtime.gpu.graphs import Graph
from core.runtime.gpu.inputs import Split, StepInputs, split_step
from core.runtime.gpu.triton_backend import TritonBackend
from core.runtime.gpu.triton_check import largest_difference, triton_problem
from core.runtime.gpu.triton_ops import TritonOps
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource
from tests.runtime_driver import Driver, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

HAS_DEVICE = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_DEVICE else "cpu")
SPECS = {
    "group of 3": dataclasses.replace(TINY, num_heads=3, num_kv_heads=1, head_dim=32, hidden_size=96),
    "heads alone": dataclasses.replace(TINY, num_kv_heads=4),
    "odd head": dataclasses.replace(TINY, num_heads=4, num_kv_heads=2, head_dim=24),
    "window": dataclasses.replace(TINY, sliding_window=21),
    "head norms, biases": dataclasses.replace(TINY, qk_norm=True, attention_bias=True, tie_word_embeddings=False),
}
ERROR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LENGTHS = {0: (1, 5), 1: (1, 260), 2: (9, 9), 3: (70, 131), 4: (1, 64), 5: (1, 1), 6: (30, 30)}
"""Row: (query tokens of this step, tokens in the cache with them)."""


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as its bits and would multiply those; widen them, as a tensor core does."""
    if HAS_DEVICE:
        return
    from triton.runtime.interpreter import InterpreterBuilder

    dot = InterpreterBuilder.create_dot

    def widened(self: InterpreterBuilder, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", widened)


def caches(spec: ModelSpec, dtype: torch.dtype, block_size: int, blocks: int) -> KVCache:
    generator = torch.Generator().manual_seed(3)
    shape = (2, blocks + 1, spec.num_kv_heads, block_size, spec.head_dim)
    return KVCache(*(torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for _ in range(2)))


def step_of(lengths: dict[int, tuple[int, int]], block_size: int, *, context: int = 0) -> tuple[StepBatch, int]:
    """A batch over shuffled blocks, and how many there are; `context` makes it a padded rectangle over so many slots."""
    counts = [c for c, _ in lengths.values()]
    ends = [n for _, n in lengths.values()]
    width = -(-max(*ends, context) // block_size)
    tables = np.random.default_rng(1).permutation(len(lengths) * width).reshape(-1, width).astype(np.int32)
    positions = np.concatenate([np.arange(n - c, n) for c, n in lengths.values()]).astype(np.int32)
    row_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    slots = tables[row_of, positions // block_size].astype(np.int64) * block_size + positions % block_size
    lens = np.full(len(ends), context, np.int32) if context else np.array(ends, np.int32)
    batch = StepBatch(positions, positions, slots, row_of, starts, lens, tables, starts[1:].astype(np.int64) - 1, bool(context))
    return batch, tables.size


def ops_for(spec: ModelSpec, dtype: torch.dtype, cache: KVCache) -> TritonOps:
    ops = TritonOps(spec, SyntheticSource(spec, 1).weights(dtype, DEVICE, 512))
    ops.bind_cache(cache)
    return ops


def run_attention(ops: TritonOps, query: torch.Tensor, batch: StepBatch) -> torch.Tensor:
    split = split_step(batch, ops.queries_a_tile)
    inputs = StepInputs(DEVICE, batch.num_tokens, batch.num_rows, len(split.tile_rows), batch.block_tables.size)
    inputs.write(batch, split)
    return ops.attention(query, 1, inputs, len(split.decode_rows), len(split.tile_rows), batch.padded)


def reference(spec: ModelSpec, cache: KVCache, query: torch.Tensor, batch: StepBatch, dtype: torch.dtype) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v by the definition, token by token, in float64."""
    group, size, out = spec.num_heads // spec.num_kv_heads, cache.block_size, []
    for token, (row, position) in enumerate(zip(batch.row_of.tolist(), batch.positions.tolist(), strict=True)):
        first = max(0, position + 1 - spec.sliding_window) if spec.sliding_window else 0
        slots = torch.arange(first, position + 1)
        blocks = torch.from_numpy(batch.block_tables[row]).long()[slots // size]
        keys, values = (t.cpu()[1, blocks, :, slots % size].double() for t in (cache.key, cache.value))  # [slots, kv, d]
        for head in range(spec.num_heads):
            scores = keys[:, head // group] @ query[token, head].cpu().double() / spec.head_dim**0.5
            out.append(scores.softmax(0) @ values[:, head // group])
    return torch.stack(out).view(len(query), -1).to(dtype)


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_attention_over_the_block_table(spec: ModelSpec, dtype: torch.dtype, block_size: int) -> None:
    batch, blocks = step_of(LENGTHS, block_size)
    cache = caches(spec, dtype, block_size, blocks)
    query = torch.randn(
        (batch.num_tokens, spec.num_heads, spec.head_dim), generator=torch.Generator().manual_seed(5)
    ).to(dtype).to(DEVICE)  # fmt: skip
    expected = reference(spec, cache, query, batch, dtype)
    for row, end in enumerate(batch.context_lens.tolist()):  # what no request wrote must not matter
        used = batch.block_tables[row, end // block_size :].astype(np.int64)
        for t in (cache.key, cache.value):
            t[:, used[0] if len(used) else blocks, :, end % block_size :] = float("nan")
            t[:, used[1:]] = float("nan")
    found = run_attention(ops_for(spec, dtype, cache), query, batch).cpu()
    assert found.isfinite().all()
    assert (found.float() - expected.float()).abs().max() <= ERROR[dtype] * expected.float().abs().max()


def test_a_decode_row_has_the_same_bits_in_any_company() -> None:
    spec, lengths = SPECS["group of 3"], {0: (1, 5), 1: (1, 400), 2: (1, 40)}
    batch, blocks = step_of(lengths, 16)
    ops = ops_for(spec, torch.float32, caches(spec, torch.float32, 16, blocks))
    query = torch.randn((3, 3, 32), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    together = run_attention(ops, query, batch)
    for row in range(3):
        part = StepBatch(
            batch.token_ids[row : row + 1], batch.positions[row : row + 1], batch.slot_mapping[row : row + 1],
            np.zeros(1, np.int32), np.array([0, 1], np.int32), batch.context_lens[row : row + 1],
            batch.block_tables[row : row + 1], np.zeros(1, np.int64),
        )  # fmt: skip
        assert torch.equal(run_attention(ops, query[row : row + 1], part)[0], together[row])


@pytest.mark.filterwarnings(
    "ignore:invalid value encountered:RuntimeWarning"
)  # the interpreter's numpy sees the NaN that is masked
def test_a_rectangle_reads_all_of_its_context_and_masks_what_nobody_wrote() -> None:
    spec = TINY
    batch, blocks = step_of({0: (4, 4), 1: (4, 9), 2: (4, 30)}, 16, context=70)
    cache = caches(spec, torch.float32, 16, blocks)
    query = torch.randn((12, 4, 16), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    expected = reference(spec, cache, query, batch, torch.float32)
    for row, end in enumerate((4, 9, 30)):
        for t in (cache.key, cache.value):
            t[:, int(batch.block_tables[row, end // 16]), :, end % 16 :] = float("nan")
            t[:, batch.block_tables[row, end // 16 + 1 :].astype(np.int64)] = float("nan")
    found = run_attention(ops_for(spec, torch.float32, cache), query, batch).cpu()
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("name", ["odd head", "head norms, biases"])
def test_rotation_and_cache_write(name: str, dtype: torch.dtype) -> None:
    spec = SPECS[name]
    batch, blocks = step_of({0: (3, 8), 1: (1, 40)}, 5)
    weights: ModelWeights = SyntheticSource(spec, 1).weights(dtype, DEVICE, 512)
    plain, both = PlainBackend(), []
    plain.bind(spec, weights)
    qkv = torch.randn(
        (batch.num_tokens, spec.q_size + 2 * spec.kv_size), generator=torch.Generator().manual_seed(5)
    ).to(dtype).to(DEVICE)  # fmt: skip
    inputs = StepInputs(DEVICE, 4, 2, 0, batch.block_tables.size)
    inputs.write(batch, Split(*(np.zeros(0, np.int32) for _ in range(3))))
    for fused in (False, True):
        cache = caches(spec, dtype, 5, blocks)
        if fused:
            query = ops_for(spec, dtype, cache).rope_and_write(qkv, 1, inputs)
        else:
            plain.bind_cache(cache)
            plain.begin_step(batch)
            query = plain.rope_and_write_kv(qkv, 1, batch)
        both.append((query, cache.key, cache.value))
    for expected, found in zip(*both, strict=True):
        assert (found.float() - expected.float()).abs().max() <= ERROR[dtype] * expected.float().abs().max()
    assert torch.equal(both[0][2], both[1][2]), "values are copied, not computed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_layer_of_kernels_gives_the_logits_of_the_plain_path(spec: ModelSpec, dtype: torch.dtype) -> None:
    assert largest_difference(spec, dtype, DEVICE) <= {torch.float32: 2e-5, torch.bfloat16: 0.04}[dtype]


class Again:
    """Implements `Capturer` without a device: a replay runs the step's launches again."""

    held_bytes = 0

    def capture(self, run: Callable[[], None]) -> Graph:
        return Replay(run)


@dataclasses.dataclass
class Replay:
    """Implements `Graph`."""

    replay: Callable[[], None]


def test_requests_come_out_as_on_the_plain_path_whatever_the_shape_of_the_steps() -> None:
    def outputs(backend: TritonBackend | PlainBackend) -> tuple[list[str], dict[str, list[int]]]:
        driver = Driver(make_runner(backend=backend, nan_fill=True))
        for index, prompt in enumerate(prompts_of((3, 17, 30))):
            driver.add(str(index), prompt)
        words = [driver.step({i: min(r.missing, 12) for i, r in driver.live.items()}).graph for _ in range(4)]
        driver.take_back("1")
        words += [driver.step({i: r.missing for i, r in driver.live.items()}).graph for _ in range(2)]
        words.append(driver.step({"0": 1, "2": 1}).graph)
        words.append(driver.step(dict.fromkeys("012", 1)).graph)
        return words, {i: r.output for i, r in driver.live.items()}

    if HAS_DEVICE:
        pytest.skip("the driver's runner lives on the CPU; tests/test_gpu_device.py runs the whole engine on the device")
    _, expected = outputs(PlainBackend())
    words, found = outputs(TritonBackend(lambda device: Again(), max_rows=8))
    assert found == expected
    assert words[-4:] == ["eager", "graph hit 4", "graph miss 2", "graph hit 4"]


def test_kernels_that_compute_nonsense_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = TritonOps.attention
    monkeypatch.setattr(TritonOps, "attention", lambda *args: attention(*args) * 1.5)
    assert "differ from the plain path" in triton_problem(TINY, torch.float32, DEVICE)


def test_kernels_that_do_not_compile_are_not_used_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> float:
        raise RuntimeError("no ptxas for sm_999\nand a long listing")

    monkeypatch.setattr(triton_check, "largest_difference", fails)
    assert triton_problem(TINY, torch.float32, DEVICE) == "Triton's kernels failed: RuntimeError: no ptxas for sm_999"


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_every_kernel_compiles_for_real_devices(capability: int) -> None:
    """To machine code, for SmolLM2's geometry and for heads of 128 and 256, in memory that the device has."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("gpu_compile.py")
    result = subprocess.run(
        [sys.executable, script, str(capability)], capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rows = json.loads(result.stdout)
    shared_limit = {80: 163, 89: 99, 90: 227}[capability] * 1024
    assert len({row["kernel"] for row in rows}) == 6
    for row in rows:
        assert row["shared_bytes"] <= shared_limit, row
        if row["kernel"] in ("decode_parts", "prefill_tiles") and row["dtype"] == "bf16":
            assert row["tensor_cores"], row
