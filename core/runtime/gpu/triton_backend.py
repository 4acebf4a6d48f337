"""The operations as Triton kernels; needs `triton` to be importable."""

from __future__ import annotations

import torch

from core.model_spec import ModelSpec
from core.runtime.backend import KVCache, ModelWeights, StepBatch
from core.runtime.gpu.backend import DeviceBackend
from core.runtime.gpu.inputs import Split, StepInputs, split_step
from core.runtime.gpu.triton_ops import TritonOps


class TritonBackend(DeviceBackend):
    """Implements `core.runtime.backend.Backend`; see `DeviceBackend`."""

    attention_name = "Triton paged attention"
    reads_whole_tables = False

    def bind(self, spec: ModelSpec, weights: ModelWeights) -> None:
        super().bind(spec, weights)
        self._ops = TritonOps(spec, weights)

    def bind_cache(self, cache: KVCache) -> None:
        self._ops.bind_cache(cache)
        super().bind_cache(cache)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._ops.norm(x, None, weight)[0]

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._ops.norm(x, residual, weight)

    def rope_and_write_kv(self, qkv: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        return self._ops.rope_and_write(qkv, layer, self._inputs)

    def paged_attention(self, query: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        return self._ops.attention(query, layer, self._inputs, self._decode_rows, self._tiles, batch.padded)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._ops.silu_mul(gate_up)

    def _split(self, batch: StepBatch) -> Split:
        return split_step(batch, self._ops.queries_a_tile)

    def _table_width(self, blocks: int) -> int:
        """Kernels read the row length from the step's meta words, so one graph does for every length."""
        return blocks

    def _use(self, inputs: StepInputs, tokens: int, rows: int, width: int) -> None:
        self._inputs = inputs
