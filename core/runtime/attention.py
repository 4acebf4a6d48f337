"""Plain attention over a paged cache: gather each row's blocks, mask, softmax; the reference for every faster kernel.

    query at position p sees slot j  <=>  j <= p  and  (no window  or  j > p - window)

Rows differ in length, so they run one after another; only a padded rectangle runs as one call. Unwritten slots
may hold NaN, and 0 * NaN is NaN, so slots that nobody in the row sees are cut off or replaced by zeros.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.runtime.backend import KVCache


def gather_blocks(cache: torch.Tensor, layer: int, blocks: torch.Tensor) -> torch.Tensor:
    """Return the slots of the given blocks in logical order.

    blocks is [..., n]; the result is [..., num_kv_heads, n * block_size, head_dim].
    """
    picked = cache[layer][blocks]  # [..., n, kv heads, block size, head size]
    heads_first = picked.movedim(-3, -4)
    return heads_first.flatten(-3, -2)


def visible(positions: torch.Tensor, context_len: int, window: int | None) -> torch.Tensor:
    """Return which of `context_len` slots each query sees: bool [..., queries, context_len]."""
    slots = torch.arange(context_len, device=positions.device)
    at = positions.unsqueeze(-1)
    mask = slots <= at
    if window is not None:
        mask &= slots > at - window
    return mask


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, compute: torch.dtype
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v with grouped heads; the arithmetic runs in `compute`.

    query [..., heads, queries, d], key and value [..., kv heads, slots, d], mask bool [..., queries, slots];
    returns [..., queries, heads * d] of the query's dtype.
    """
    lead = query.dim() == 3
    q, k, v = (t.unsqueeze(0) if lead else t for t in (query, key, value))
    m = mask if mask is None else (mask if lead else mask.unsqueeze(1))
    out = F.scaled_dot_product_attention(q.to(compute), k.to(compute), v.to(compute), attn_mask=m, enable_gqa=True)
    merged = out.transpose(1, 2).flatten(2).to(query.dtype)
    return merged.squeeze(0) if lead else merged


def row_attention(
    query: torch.Tensor,
    cache: KVCache,
    layer: int,
    blocks: torch.Tensor,
    positions: torch.Tensor,
    context_len: int,
    window: int | None,
    compute: torch.dtype,
) -> torch.Tensor:
    """Attention of one row: query [queries, heads, d] at `positions`, `blocks` covering `context_len` slots."""
    key = gather_blocks(cache.key, layer, blocks)[:, :context_len]
    value = gather_blocks(cache.value, layer, blocks)[:, :context_len]
    needs_mask = query.shape[0] > 1 or (window is not None and context_len > window)
    mask = visible(positions, context_len, window) if needs_mask else None
    return attend(query.transpose(0, 1), key, value, mask, compute)


def padded_attention(
    query: torch.Tensor,
    cache: KVCache,
    layer: int,
    blocks: torch.Tensor,
    positions: torch.Tensor,
    context_len: int,
    window: int | None,
    compute: torch.dtype,
) -> torch.Tensor:
    """Attention of a rectangle: query [rows, width, heads, d], positions [rows, width], blocks [rows, n].

    All `context_len` slots of each row are read and multiplied; the mask decides what counts.
    """
    mask = visible(positions, context_len, window)
    unseen = ~mask.any(dim=1)[:, None, :, None]
    key = gather_blocks(cache.key, layer, blocks)[:, :, :context_len].masked_fill(unseen, 0)
    value = gather_blocks(cache.value, layer, blocks)[:, :, :context_len].masked_fill(unseen, 0)
    return attend(query.transpose(1, 2), key, value, mask, compute)
