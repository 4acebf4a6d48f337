"""The reference backend: every operation in plain PyTorch, correct on any device, fast on none.

Row invariance in float32 on a CPU. A library picks its matrix kernel by the number of rows, and the end of an
array is finished by scalar code, so the last bit of a token's result can depend on its companions. Two rules
keep it independent of them:

    matrix products   rows padded with zeros to a multiple of ROW_TILE, so only full kernel tiles are used
    all the rest      carried in float64 and rounded once, which hides the order of the additions

bfloat16 rounds each result to 8 bits; there companions may move the last bit, and where two logits tie within
that rounding the ids may part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.model_spec import ModelSpec
from core.runtime.attention import padded_attention, row_attention
from core.runtime.backend import Best, KVCache, LinearWeight, ModelWeights, StepBatch
from core.runtime.rope import rotate

ROW_TILE = 16


class PlainBackend:
    """Implements `core.runtime.backend.Backend`."""

    def __init__(self) -> None:
        self._spec: ModelSpec
        self._weights: ModelWeights
        self._cache: KVCache
        self._compute = torch.float32
        self._tile_rows = False
        self._positions = torch.empty(0, dtype=torch.int64)
        self._slots = torch.empty(0, dtype=torch.int64)
        self._tables = torch.empty(0, dtype=torch.int64)
        self._cos = torch.empty(0)
        self._sin = torch.empty(0)

    @property
    def name(self) -> str:
        return "plain PyTorch"

    def bind(self, spec: ModelSpec, weights: ModelWeights) -> None:
        self._spec = spec
        self._weights = weights
        exact = weights.embedding.dtype == torch.float32 and weights.embedding.device.type == "cpu"
        self._compute = torch.float64 if exact else torch.float32
        self._tile_rows = exact

    def bind_cache(self, cache: KVCache) -> None:
        self._cache = cache

    def prepare(self, batch: StepBatch) -> None:
        """See `Backend`: nothing to do."""

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        return None

    def best_tokens(self) -> Best | None:
        """See `Backend`: logits are searched by the sampler."""
        return None

    def begin_step(self, batch: StepBatch) -> None:
        device = self._cache.key.device
        self._positions = torch.from_numpy(batch.positions).to(device, torch.int64)
        self._slots = torch.from_numpy(batch.slot_mapping).to(device)
        self._tables = torch.from_numpy(batch.block_tables).to(device, torch.int64)
        self._cos = self._weights.rope_cos[self._positions]
        self._sin = self._weights.rope_sin[self._positions]

    def embed(self, batch: StepBatch) -> torch.Tensor:
        return F.embedding(torch.from_numpy(batch.token_ids).to(self._weights.embedding.device), self._weights.embedding)

    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        rows = x.shape[0]
        if not self._tile_rows or rows % ROW_TILE == 0:
            return F.linear(x, weight.weight, weight.bias)
        return F.linear(F.pad(x, (0, 0, 0, -rows % ROW_TILE)), weight.weight, weight.bias)[:rows]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.to(self._compute)
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._spec.rms_norm_eps)
        return (wide * scale).to(x.dtype) * weight

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return self.rms_norm(total, weight), total

    def rope_and_write_kv(self, qkv: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        spec, weights = self._spec, self._weights.layers[layer]
        widths = [spec.q_size, spec.kv_size, spec.kv_size]
        q, k, v = (part.reshape(len(part), -1, spec.head_dim) for part in torch.split(qkv, widths, dim=-1))
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = self.rms_norm(q, weights.q_norm), self.rms_norm(k, weights.k_norm)
        q, k = rotate(q, self._cos, self._sin), rotate(k, self._cos, self._sin)
        size = self._cache.block_size
        blocks, offsets = self._slots // size, self._slots % size
        self._cache.key[layer][blocks, :, offsets] = k
        self._cache.value[layer][blocks, :, offsets] = v
        return q

    def paged_attention(self, query: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        window = self._spec.sliding_window
        if batch.padded:
            rows, context_len = batch.num_rows, int(batch.context_lens[0])
            blocks = self._tables[:, : -(-context_len // self._cache.block_size)]
            rectangle = query.view(rows, -1, *query.shape[1:])
            positions = self._positions.view(rows, -1)
            out = padded_attention(rectangle, self._cache, layer, blocks, positions, context_len, window, self._compute)
            return out.flatten(0, 1)
        starts = batch.query_start.tolist()
        outputs = []
        for row, context_len in enumerate(batch.context_lens.tolist()):
            part = slice(starts[row], starts[row + 1])
            blocks = self._tables[row, : -(-context_len // self._cache.block_size)]
            outputs.append(
                row_attention(query[part], self._cache, layer, blocks, self._positions[part], context_len, window, self._compute)
            )
        return torch.cat(outputs)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate.to(self._compute)).to(gate.dtype) * up

    def close(self) -> None:
        self._weights = ModelWeights(torch.empty(0))
        self._cache = KVCache(torch.empty(0), torch.empty(0))
