"""May the Triton kernels be used here? They are compiled and compared with the plain path before a model relies on them.

One layer of the model's own geometry with seeded weights runs a prompt, a chunk beside a decode row, and a decode step; the
logits must agree with those of `PlainBackend` up to the rounding of the dtype. A few seconds, then Triton's cache is warm.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import torch

from core.model_spec import ModelSpec
from core.runtime.backend import Backend, KVCache, StepBatch
from core.runtime.model import DecoderModel
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.01}
"""Largest difference as a share of the largest logit."""
_BLOCK = 16
_BLOCKS = 24
_VOCAB = 256
_MOST_INTERMEDIATE = 2048
_STEPS: tuple[tuple[tuple[int, int], ...], ...] = (((0, 150),), ((0, 1), (1, 75)), ((1, 30), (0, 1)), ((0, 1), (1, 1)))
"""(row, new tokens) of each step."""


def triton_problem(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> str:
    """Return "" if the kernels can be used, else why not."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        difference = largest_difference(spec, dtype, device)
    except Exception as error:  # the compiler, its driver and the device each raise their own
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        return f"Triton's kernels failed: {type(error).__name__}: {first_line}"
    if not difference <= TOLERANCE[dtype]:
        return f"Triton's kernels differ from the plain path by {difference:.2g} of the largest logit"
    return ""


def largest_difference(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> float:
    """Largest difference between the logits of both paths, as a share of the largest logit; NaN if one is not finite."""
    from core.runtime.gpu.triton_backend import TritonBackend

    one_layer = dataclasses.replace(
        spec, num_layers=1, vocab_size=_VOCAB, max_model_len=_BLOCK * _BLOCKS, bos_token_id=None, eos_token_ids=(0,),
        intermediate_size=min(spec.intermediate_size, _MOST_INTERMEDIATE),
    )  # fmt: skip
    expected, found = (_run(one_layer, backend, dtype, device) for backend in (PlainBackend(), TritonBackend()))
    return float(((found - expected).abs().max() / expected.abs().max()).item())


def _run(spec: ModelSpec, backend: Backend, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Logits of all steps, float32 [logits, vocabulary]; unwritten slots hold NaN."""
    model = DecoderModel(spec, SyntheticSource(spec, 0).weights(dtype, device, spec.max_model_len), backend)
    shape = (1, _BLOCKS + 1, spec.num_kv_heads, _BLOCK, spec.head_dim)
    model.bind_cache(KVCache(*(torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2))))
    tables = np.arange(_BLOCKS, dtype=np.int32)[::-1].reshape(2, -1)
    lengths = [0, 0]
    logits = [model.forward(_batch(parts, lengths, tables)).float() for parts in _STEPS]
    backend.close()
    return torch.cat(logits)


def _batch(parts: tuple[tuple[int, int], ...], lengths: list[int], tables: np.ndarray) -> StepBatch:
    """The next step of the rows; `lengths` grows."""
    rows = [row for row, _ in parts]
    counts = [count for _, count in parts]
    positions = np.concatenate([np.arange(lengths[row], lengths[row] + count) for row, count in parts]).astype(np.int32)
    for row, count in parts:
        lengths[row] += count
    row_of = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    blocks = tables[np.repeat(rows, counts), positions // _BLOCK].astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return StepBatch(
        token_ids=(positions * 37 + 11) % _VOCAB,
        positions=positions,
        slot_mapping=blocks * _BLOCK + positions % _BLOCK,
        row_of=row_of,
        query_start=starts,
        context_lens=np.array([lengths[row] for row in rows], np.int32),
        block_tables=np.ascontiguousarray(tables[rows]),
        logits_indices=starts[1:].astype(np.int64) - 1,
    )
