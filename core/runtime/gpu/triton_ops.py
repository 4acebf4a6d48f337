"""Launches of the Triton kernels: tile sizes for a geometry, grids, and where results go. Nothing here waits for the device."""

from __future__ import annotations

import math

import torch

from core.model_spec import ModelSpec
from core.runtime.backend import KVCache, LayerWeights, ModelWeights
from core.runtime.gpu import triton_attention, triton_fused
from core.runtime.gpu.inputs import StepInputs

PARTS = 16
"""Most parts of a decode row's context: a lone request at 1,024 tokens keeps 16 programs a KV head busy."""
LEAST_LINES = 16
"""Rows that a tensor core's product needs at least."""
TILE_LINES = 64
FLOAT32_LINES = 32
"""float32 keeps to the exact units instead of tensor cores: larger tiles spill kilobytes of registers (seen in sm_90 code)."""
GATE_TILE = 1024
WIDE_HEAD = 128


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


class TritonOps:
    """The kernels for one model on one device; `bind_cache` before the first step.

    Args:
        spec, weights: as given to `Backend.bind`.
    """

    def __init__(self, spec: ModelSpec, weights: ModelWeights) -> None:
        self._spec, self._weights = spec, weights
        self._cache: KVCache
        group = spec.num_heads // spec.num_kv_heads
        exact = weights.embedding.element_size() > 2
        self._lines = max(FLOAT32_LINES if exact else TILE_LINES, _power_of_two(group))
        self.queries_a_tile = self._lines // group
        self._tile = (16 if exact else 32) if spec.head_dim > (WIDE_HEAD // 2 if exact else WIDE_HEAD) else (32 if exact else 64)
        self._stages = 1 if exact else 2
        self._scale = math.log2(math.e) / math.sqrt(spec.head_dim)
        self._heads = {"GROUP": group, "KV_HEADS": spec.num_kv_heads, "HEAD": spec.head_dim,
                       "HEAD_PAD": max(_power_of_two(spec.head_dim), LEAST_LINES)}  # fmt: skip

    def bind_cache(self, cache: KVCache) -> None:
        """Point the kernels at (new) KV tensors."""
        self._cache = cache

    def attention(
        self, query: torch.Tensor, layer: int, inputs: StepInputs, decode_rows: int, tiles: int, rectangle: bool
    ) -> torch.Tensor:
        """Attention of a step that was split; query [tokens, heads, head_dim], returns [tokens, heads * head_dim].

        Args:
            decode_rows, tiles: how many of `inputs.decode_rows` and of `inputs.tile_rows` there are.
            rectangle: see `StepBatch.padded`.
        """
        spec, out = self._spec, torch.empty_like(query)
        key, value = self._cache.key[layer], self._cache.value[layer]
        common = {"BLOCK": self._cache.block_size, "WINDOW": spec.sliding_window or 0, "TILE": self._tile}
        if tiles:
            triton_attention.prefill_tiles[tiles, spec.num_kv_heads](
                query, key, value, inputs.tables, inputs.meta, inputs.tile_rows, inputs.tile_starts, inputs.query_start,
                inputs.positions, inputs.context_lens, out, self._scale,
                **self._heads, **common, LINES=self._lines, RECTANGLE=rectangle, num_warps=4, num_stages=self._stages,
            )  # fmt: skip
        if decode_rows:
            partial = torch.empty((decode_rows, spec.num_heads, PARTS, spec.head_dim), dtype=torch.float32, device=query.device)
            sums = torch.empty((decode_rows, spec.num_heads, PARTS, 2), dtype=torch.float32, device=query.device)
            rows, starts, contexts = inputs.decode_rows, inputs.query_start, inputs.context_lens
            triton_attention.decode_parts[decode_rows, spec.num_kv_heads, PARTS](
                query, key, value, inputs.tables, inputs.meta, rows, starts, contexts, partial, sums, self._scale,
                **self._heads, **common, GROUP_PAD=max(_power_of_two(self._heads["GROUP"]), LEAST_LINES), PARTS=PARTS,
                num_warps=4, num_stages=self._stages,
            )  # fmt: skip
            triton_attention.decode_join[decode_rows, spec.num_heads](
                partial, sums, rows, starts, contexts, out,
                HEADS=spec.num_heads, HEAD=spec.head_dim, HEAD_PAD=self._heads["HEAD_PAD"], WINDOW=common["WINDOW"],
                TILE=self._tile, PARTS=PARTS, num_warps=2,
            )  # fmt: skip
        return out.flatten(1)

    def rope_and_write(self, qkv: torch.Tensor, layer: int, inputs: StepInputs) -> torch.Tensor:
        """See `Backend.rope_and_write_kv`."""
        spec, weights = self._spec, self._weights
        norms: LayerWeights = weights.layers[layer]
        tokens, half = len(qkv), spec.head_dim // 2
        query = torch.empty((tokens, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
        triton_fused.rope_and_write[tokens, spec.num_heads + 2 * spec.num_kv_heads](
            qkv, query, self._cache.key[layer], self._cache.value[layer], inputs.positions, inputs.slots,
            weights.rope_cos, weights.rope_sin, qkv if norms.q_norm is None else norms.q_norm,
            qkv if norms.k_norm is None else norms.k_norm, spec.rms_norm_eps,
            HEADS=spec.num_heads, KV_HEADS=spec.num_kv_heads, HALF=half, HALF_PAD=_power_of_two(half),
            BLOCK=self._cache.block_size, NORM=norms.q_norm is not None, num_warps=1,
        )  # fmt: skip
        return query

    def norm(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rms_norm(x + residual), x + residual); without a residual the second is x."""
        rows, size = x.shape
        out, total = torch.empty_like(x), x if residual is None else torch.empty_like(x)
        if rows:
            triton_fused.add_norm[rows,](
                x, x if residual is None else residual, weight, total, out, self._spec.rms_norm_eps,
                SIZE=size, SIZE_PAD=_power_of_two(size), ADD=residual is not None, num_warps=8 if size > 2048 else 4,
            )  # fmt: skip
        return out, total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Backend.silu_mul`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        triton_fused.gate[rows, -(-size // GATE_TILE)](gate_up, out, SIZE=size, TILE=GATE_TILE, num_warps=4)
        return out
