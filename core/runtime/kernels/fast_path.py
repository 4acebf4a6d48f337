"""One model bound to the compiled step: packed weights, the layer table, and the description that a step reads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from core.model_spec import ModelSpec
from core.runtime.backend import Best, KVCache, LayerWeights, LinearWeight, ModelWeights, StepBatch
from core.runtime.kernels.attention import scratch_bytes
from core.runtime.kernels.buffers import StepBuffers
from core.runtime.kernels.description import COUNTER_BYTES, COUNTERS_A_LAYER, LAYER_WORDS, STEP_WORDS, LayerWord, Word
from core.runtime.kernels.gemm import FLOAT_BYTES, PAIRS_BYTES
from core.runtime.kernels.library import BF16_PAIRS, INT8_BF16_PAIRS, product_dtype, table_address
from core.runtime.kernels.pack import PackedWeight, pack, pack_gate_up, padded
from core.runtime.kernels.rows import compiled_rows
from core.runtime.kernels.step import compiled_step
from core.runtime.kernels.team import Team, team

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

    Attributes:
        products: which library computes the products: `dtype`, "int8", or one of pairs.
    """

    def __init__(
        self, spec: ModelSpec, weights: ModelWeights, dtype: str, threads: int, weight_dtype: str = "same", *, widen: bool = False
    ) -> None:
        self._spec, self._weights = spec, weights
        self._int8 = weight_dtype == "int8"
        self._attention = dtype if widen else product_dtype(dtype)
        pairs = self._attention == BF16_PAIRS
        self.products = (INT8_BF16_PAIRS if pairs else "int8") if self._int8 else self._attention
        self._team = compile_all((dtype, self.products, self._attention), threads)
        self._step = compiled_step()
        self._small: list[torch.Tensor] = []
        self._plain_bytes = 0
        self._packed: list[tuple[LinearWeight, PackedWeight]] = []
        self._layers = np.zeros((spec.num_layers, LAYER_WORDS), np.int64)
        self._counters = np.zeros((spec.num_layers * COUNTERS_A_LAYER + 1) * COUNTER_BYTES // 8, np.int64)
        self._scratch = np.zeros((threads, -(-scratch_bytes(spec.head_dim) // 64) * 64), np.uint8)
        self._floats = np.array([spec.rms_norm_eps, spec.head_dim**-0.5], np.float32)
        self._description = np.zeros(STEP_WORDS, np.int64)
        self._description_address = int(self._description.ctypes.data)
        self._buffers = StepBuffers(spec, threads, torch.bfloat16 if self.products in _PAIRS else torch.float32)
        self.row_calls = compiled_rows()
        self._count = 0
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
            self._layers[:, column] = tensor.data_ptr() + stride * np.arange(self._spec.num_layers)

    def load(self, batch: StepBatch) -> None:
        """Describe a step, so that `run` has nothing to do but to run it."""
        self._count = len(batch.logits_indices)
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
        return self._plain_bytes - sum(packed.panels * packed.panel_bytes for _, packed in self._packed) if self._int8 else 0

    def release_plain_weights(self) -> None:
        """Drop the plain projections, whose packed copies are in use; an embedding stays, its rows are looked up."""
        for linear, packed in self._packed:
            linear.packed = packed
            linear.weight = torch.empty(0, dtype=linear.weight.dtype)

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
        d[Word.SCRATCH] = self._scratch.ctypes.data
        d[Word.SCRATCH_BYTES] = self._scratch.shape[1]

    def _describe_model(self, spec: ModelSpec, weights: ModelWeights) -> None:
        d = self._description
        for word, value in {
            Word.LAYERS: spec.num_layers,
            Word.LAYER_TABLE: self._layers.ctypes.data,
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
            Word.FINAL_NORM: self._float32(weights.final_norm),
            Word.COS: self._float32(weights.rope_cos),
            Word.SIN: self._float32(weights.rope_sin),
        }.items():
            d[word] = value
        for index, layer in enumerate(weights.layers):
            self._describe_layer(self._layers[index], layer)
        head = self._pack(weights.head)
        d[Word.HEAD], d[Word.HEAD_PANELS], d[Word.HEAD_PANEL_BYTES] = head.address, head.panels, head.panel_bytes

    def _describe_layer(self, entry: npt.NDArray[np.int64], layer: LayerWeights) -> None:
        d = self._description
        qkv, o, down = self._pack(layer.qkv), self._pack(layer.o), self._pack(layer.down)
        gate_up = self._pack(layer.gate_up, gated=True)
        for word, packed in ((Word.QKV_PANELS, qkv), (Word.O_PANELS, o), (Word.DOWN_PANELS, down)):
            d[word], d[word + 1] = packed.panels, packed.panel_bytes
        d[Word.GATE_UP_PAIRS], d[Word.GATE_UP_PANEL_BYTES] = gate_up.panels // 2, gate_up.panel_bytes
        for column, address in {
            LayerWord.QKV: qkv.address,
            LayerWord.OUTPUT: o.address,
            LayerWord.GATE_UP: gate_up.address,
            LayerWord.DOWN: down.address,
            LayerWord.INPUT_NORM: self._float32(layer.input_norm),
            LayerWord.POST_NORM: self._float32(layer.post_norm),
            LayerWord.QKV_BIAS: self._float32(layer.qkv.bias),
            LayerWord.OUTPUT_BIAS: self._float32(layer.o.bias),
            LayerWord.Q_NORM: self._float32(layer.q_norm),
            LayerWord.K_NORM: self._float32(layer.k_norm),
        }.items():
            entry[column] = address

    def _pack(self, linear: LinearWeight, *, gated: bool = False) -> PackedWeight:
        self._plain_bytes += linear.weight.numel() * linear.weight.element_size()
        packed = (pack_gate_up if gated else pack)(linear.weight, int8=self._int8)
        self._packed.append((linear, packed))
        return packed

    def _float32(self, tensor: torch.Tensor | None) -> int:
        """Address of a small tensor in float32, padded with zeros to whole vectors; 0 for none."""
        if tensor is None:
            return 0
        wide = tensor.to(torch.float32)
        if wide.dim() == 1:
            wide = F.pad(wide, (0, padded(len(wide)) - len(wide)))
        self._small.append(wide.contiguous())
        return self._small[-1].data_ptr()
