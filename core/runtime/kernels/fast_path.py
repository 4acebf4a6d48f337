"""One model bound to the compiled step: packed weights, the layer table, and the description that a step reads."""

from __future__ import annotations

import numpy as np
import torch

from core.model_spec import ModelSpec
from core.runtime.backend import Best, KVCache, ModelWeights, StepBatch
from core.runtime.kernels.attention import scratch_bytes
from core.runtime.kernels.buffers import StepBuffers
from core.runtime.kernels.coded import ROOM_BYTES
from core.runtime.kernels.description import COUNTER_BYTES, COUNTERS_A_LAYER, STEP_WORDS, LayerWord, Word
from core.runtime.kernels.library import BF16_PAIRS, INT8_BF16_PAIRS, product_dtype, table_address
from core.runtime.kernels.microkernel import ADD, CONTINUE
from core.runtime.kernels.pack import padded
from core.runtime.kernels.panels import code_model, pack_model
from core.runtime.kernels.rows import compiled_rows
from core.runtime.kernels.step import compiled_step
from core.runtime.kernels.team import Team, team
from core.runtime.kernels.tiles import FLOAT_BYTES, PAIRS_BYTES
from core.runtime.kernels.unpack import FEW_ROWS

_PAIRS = (BF16_PAIRS, INT8_BF16_PAIRS)
_KEEP_LOGITS = 1 << 16
"""Logits of up to so many values are copied out, larger ones are lent until the next step."""


def compile_all(dtypes: tuple[str, ...], threads: int) -> Team:
    """Compile, or load from the cache, all that a step needs."""
    for dtype in dtypes:
        table_address(dtype)
    compiled_step()
    return team(threads)


class FastPath:
    """A model ready to run; see `KernelBackend`.

    Args:
        dtype: "bfloat16" or "float32", the element type of weights and cache.
        weight_dtype: "same", or "int8": projections and head rounded to 8 bits with one scale an output.
        widen: widen bfloat16 weights to float32 also where the processor multiplies bfloat16.
        coded: keep a coded copy of the weights for small steps, where products of pairs and memory allow it.

    Attributes:
        products: which library computes the products: `dtype`, "int8", or one of pairs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        dtype: str,
        threads: int,
        weight_dtype: str = "same",
        *,
        widen: bool = False,
        coded: bool = True,
    ) -> None:
        self._spec, self._weights = spec, weights
        self._int8 = weight_dtype == "int8"
        self._attention = dtype if widen else product_dtype(dtype)
        pairs = self._attention == BF16_PAIRS
        self.products = (INT8_BF16_PAIRS if pairs else "int8") if self._int8 else self._attention
        self._team = compile_all((dtype, self.products, self._attention), threads)
        self._step = compiled_step()
        self._plain_bytes = _matrix_bytes(weights)
        self._counters = np.zeros((spec.num_layers * COUNTERS_A_LAYER + 1) * COUNTER_BYTES // 8, np.int64)
        self._scratch = np.zeros((threads, -(-scratch_bytes(spec.head_dim) // 64) * 64), np.uint8)
        self._floats = np.array([spec.rms_norm_eps, spec.head_dim**-0.5], np.float32)
        self._description = np.zeros(STEP_WORDS, np.int64)
        self._description_address = int(self._description.ctypes.data)
        self._buffers = StepBuffers(spec, threads, torch.bfloat16 if self.products in _PAIRS else torch.float32)
        self.row_calls = compiled_rows()
        self._count = 0
        self._panels = pack_model(weights, int8=self._int8)
        self._coded = code_model(weights, self._panels) if coded and self.products == BF16_PAIRS else None
        self._room = np.zeros((threads, ROOM_BYTES), np.uint8)
        self._small_step = False
        self._describe_run(dtype)
        self._describe_model(spec, weights)

    def bind_cache(self, cache: KVCache) -> None:
        """Point the kernels at (new) KV tensors of the plain layout."""
        d, element = self._description, cache.key.element_size()
        heads, block_size, head_dim = cache.key.shape[2:]
        d[Word.ROW_BYTES] = head_dim * element
        d[Word.HEAD_BYTES] = block_size * head_dim * element
        d[Word.BLOCK_BYTES] = heads * block_size * head_dim * element
        d[Word.BLOCK_SIZE] = block_size
        for column, tensor in ((LayerWord.KEYS, cache.key), (LayerWord.VALUES, cache.value)):
            stride = tensor.stride(0) * element
            for panels in (self._panels, self._coded):
                if panels is not None:
                    panels.layers[:, column] = tensor.data_ptr() + stride * np.arange(self._spec.num_layers)

    def load(self, batch: StepBatch) -> None:
        """Describe a step, so that `run` has nothing to do but to run it."""
        self._count = len(batch.logits_indices)
        small = self._coded is not None and batch.num_tokens <= FEW_ROWS
        if small != self._small_step:
            self._read_from(small)
        self._buffers.reserve(self._description, batch.num_tokens, max(self._count, 1))
        self._buffers.write_batch(self._description, batch)
        self._counters[:] = 0

    def run(self) -> torch.Tensor:
        """Run the step that was loaded and return its logits, float32 [num_logits, vocab_size]."""
        count = self._count
        self._team.run(self._step, self._description_address)
        logits = self._buffers.logits(count)
        return logits.clone() if logits.numel() <= _KEEP_LOGITS else logits

    def best_tokens(self) -> Best:
        """The first of the largest logits of each row of the latest step, and its value; NaN where one is not finite."""
        return self._buffers.best_tokens(self._count)

    @property
    def saved_bytes(self) -> int:
        """Bytes of projections and head that a step reads less than the plain weights have; 0 without int8."""
        return self._plain_bytes - self._panels.num_bytes if self._int8 else 0

    @property
    def coded_tokens(self) -> int:
        """A step of at most so many tokens reads the coded copy; 0 without one."""
        return 0 if self._coded is None else FEW_ROWS

    @property
    def coded_saved_bytes(self) -> int:
        """Bytes that a step of at most FEW_ROWS tokens reads less, because they are coded; 0 without a coded copy."""
        return 0 if self._coded is None else self._plain_bytes - self._coded.num_bytes

    @property
    def coded_bytes(self) -> int:
        """Bytes of memory that the coded copy takes beside the plain panels."""
        return 0 if self._coded is None else self._coded.num_bytes

    def release_plain_weights(self) -> None:
        """Drop the plain projections, whose packed copies are in use; an embedding stays, its rows are looked up."""
        for linear, packed in self._panels.packed:
            linear.packed = packed
            linear.weight = torch.empty(0, dtype=linear.weight.dtype)

    def _read_from(self, small: bool) -> None:
        """Let the next steps read the coded copy, or the plain panels."""
        panels = self._coded if small and self._coded is not None else self._panels
        self._small_step = panels is self._coded
        for word, value in panels.words.items():
            self._description[word] = value
        self._description[Word.ROOM] = self._room.ctypes.data if self._small_step else 0
        self._description[Word.ROOM_BYTES] = ROOM_BYTES if self._small_step else 0

    def _describe_run(self, dtype: str) -> None:
        d = self._description
        d[Word.THREADS] = self._team.threads
        d[Word.CONTROL] = self._team.control
        d[Word.COUNTERS] = self._counters.ctypes.data
        d[Word.FUNCTIONS] = table_address(dtype)
        d[Word.PRODUCT_FUNCTIONS] = table_address(self.products)
        d[Word.INPUT_BYTES] = PAIRS_BYTES if self.products in _PAIRS else FLOAT_BYTES
        d[Word.ATTENTION_FUNCTIONS] = table_address(self._attention)
        d[Word.ATTENTION_INPUT_BYTES] = PAIRS_BYTES if self._attention == BF16_PAIRS else FLOAT_BYTES
        d[Word.RESIDUAL_MODE] = ADD if self._int8 else CONTINUE  # int8 multiplies a sum by its scale at the end
        d[Word.SCRATCH] = self._scratch.ctypes.data
        d[Word.SCRATCH_BYTES] = self._scratch.shape[1]

    def _describe_model(self, spec: ModelSpec, weights: ModelWeights) -> None:
        d = self._description
        for word, value in {
            Word.LAYERS: spec.num_layers,
            Word.HIDDEN: spec.hidden_size,
            Word.VOCAB: spec.vocab_size,
            Word.HEADS: spec.num_heads,
            Word.KV_HEADS: spec.num_kv_heads,
            Word.HEAD_DIM: spec.head_dim,
            Word.INTERMEDIATE: padded(spec.intermediate_size),
            Word.EPSILON_AND_FACTOR: self._floats.ctypes.data,
            Word.WINDOW: spec.sliding_window or 0,
            Word.EMBEDDING: weights.embedding.data_ptr(),
            Word.EMBEDDING_ROW_BYTES: weights.embedding.stride(0) * weights.embedding.element_size(),
            Word.FINAL_NORM: self._panels.float32(weights.final_norm),
            Word.COS: self._panels.float32(weights.rope_cos),
            Word.SIN: self._panels.float32(weights.rope_sin),
        }.items():
            d[word] = value
        self._read_from(False)


def _matrix_bytes(weights: ModelWeights) -> int:
    """Bytes of all projections and the head as they are stored."""
    matrices = [w.weight for layer in weights.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    return sum(t.numel() * t.element_size() for t in [*matrices, weights.head.weight])
