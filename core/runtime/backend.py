"""The seam between what a forward pass is and how fast it runs: plain data, and one protocol.

    StepBatch (numpy, ragged: no padding between rows)          KVCache (torch)
      token_ids   [ t0 t1 t2 | t0 | t0 t1 ]   flat               key, value: [layer, block, kv head, slot, head size]
      row_of      [ 0  0  0  | 1  | 2  2  ]                      block num_blocks is the scratch block: padding writes
      query_start [ 0, 3, 4, 6 ]                                 there and nobody reads it
      block_tables[ row, logical block ] -> physical block

`PlainBackend` (plain_backend.py) is the reference; a faster one must give the same numbers up to rounding.
A backend may take over single operations, or a whole step through `forward`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from core.model_spec import ModelSpec

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class StepBatch:
    """One step as flat host arrays; query token j belongs to row `row_of[j]`.

    A query at position p sees the keys 0..p of its row (those above p - sliding_window if the model has a window).

    Attributes:
        token_ids: [num_tokens] int32.
        positions: [num_tokens] int32, place in the row's context.
        slot_mapping: [num_tokens] int64, block * block_size + slot where the token's key and value go.
        row_of: [num_tokens] int32.
        query_start: [num_rows + 1] int32, first token of each row, and num_tokens at the end.
        context_lens: [num_rows] int32, tokens of the row in the cache once this step has written its own.
        block_tables: [num_rows, width] int32, C-contiguous; entries beyond the context are unspecified but valid.
        logits_indices: [num_logits] int64, flat indices of the tokens whose logits are wanted.
        padded: the step is a rectangle of a request-level batch. Every query then reads all `context_lens[row]` slots
            of its row and masks what it must not see, so that the waste is real work; results are unchanged.
    """

    token_ids: Int32
    positions: Int32
    slot_mapping: Int64
    row_of: Int32
    query_start: Int32
    context_lens: Int32
    block_tables: Int32
    logits_indices: Int64
    padded: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    @property
    def is_decode_only(self) -> bool:
        """True where each row has exactly one query token."""
        return len(self.token_ids) == len(self.context_lens)


@dataclass(slots=True)
class KVCache:
    """Keys and values of all layers.

    Attributes:
        key, value: [num_layers, num_blocks + 1, num_kv_heads, block_size, head_dim], contiguous, of the model's dtype.
    """

    key: torch.Tensor
    value: torch.Tensor

    @property
    def num_blocks(self) -> int:
        """Blocks that requests may use; the scratch block comes on top."""
        return int(self.key.shape[1]) - 1

    @property
    def block_size(self) -> int:
        return int(self.key.shape[3])

    @property
    def scratch_block(self) -> int:
        """Index of the block into which padding writes."""
        return self.num_blocks

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers, from the tensors themselves."""
        slots = self.key.shape[1] * self.key.shape[3]
        return (self.key.numel() * self.key.element_size() + self.value.numel() * self.value.element_size()) // slots


@dataclass(slots=True, eq=False)
class LinearWeight:
    """A projection y = x W^T + b.

    Attributes:
        weight: [out_features, in_features], contiguous.
        bias: [out_features] or None.
        packed: whatever a backend keeps beside (or, having emptied `weight`, instead of) the plain weight.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    packed: object | None = None


@dataclass(slots=True, eq=False)
class LayerWeights:
    """One decoder layer with fused projections.

    Attributes:
        qkv: rows are all query heads, then all key heads, then all value heads.
        gate_up: rows are the gate, then the up projection.
        q_norm, k_norm: [head_dim], only where the model normalises its heads (Qwen3).
    """

    input_norm: torch.Tensor
    qkv: LinearWeight
    o: LinearWeight
    post_norm: torch.Tensor
    gate_up: LinearWeight
    down: LinearWeight
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class ModelWeights:
    """All tensors of a model; a tied head shares the embedding's storage.

    Attributes:
        rope_cos, rope_sin: [max_model_len, head_dim / 2] float32; pair (i, i + head_dim / 2) turns by one angle.
    """

    embedding: torch.Tensor
    layers: list[LayerWeights] = field(default_factory=list)
    final_norm: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    head: LinearWeight = field(default_factory=lambda: LinearWeight(torch.empty(0)))
    rope_cos: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    rope_sin: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def is_tied(self) -> bool:
        return self.head.weight.data_ptr() == self.embedding.data_ptr()


class Best(NamedTuple):
    """The first of the largest logits of each row.

    Attributes:
        token_ids: [rows] int64.
        values: [rows] float32, NaN where a row holds one.
        finite: whether all values are finite.
    """

    token_ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    finite: bool


class Backend(Protocol):
    """The operations of a forward pass. Tensors live on the model's device and have its dtype unless said otherwise.

    Row invariance: in float32 the result of a token must not depend on which other tokens share the step (see
    docs of `PlainBackend`); in bfloat16 it may differ by rounding.
    """

    @property
    def name(self) -> str:
        """Code paths in use, for labels, e.g. "numba paged attention, oneDNN"."""
        ...

    def bind(self, spec: ModelSpec, weights: ModelWeights) -> None:
        """Take the weights; called once, before anything else. May pack them (`LinearWeight.packed`)."""
        ...

    def bind_cache(self, cache: KVCache) -> None:
        """Take the KV tensors; called again after each resize."""
        ...

    def prepare(self, batch: StepBatch) -> None:
        """Called before the step is run, in the time of the preparation: index arrays go where they will be read."""
        ...

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """Run the whole step and return logits [num_logits, vocab_size] (float32 or the model's dtype).

        None leaves this step to the operations below; the answer may differ from step to step.
        """
        ...

    def best_tokens(self) -> Best | None:
        """Of the step that `forward` just ran: for each row of its logits the first of the largest, and its value.

        The value is NaN where a logit is not finite. None if this backend does not look while it computes.
        """
        ...

    def begin_step(self, batch: StepBatch) -> None:
        """Called before the operations of a step that `forward` left; the place to move index arrays to the device."""
        ...

    def embed(self, batch: StepBatch) -> torch.Tensor:
        """Return [num_tokens, hidden_size]."""
        ...

    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        """Return x W^T + b, [rows of x, out_features]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return x / sqrt(mean(x^2) + spec.rms_norm_eps) * weight; the mean in float32."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rms_norm(x + residual), x + residual); both arguments may be overwritten."""
        ...

    def rope_and_write_kv(self, qkv: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        """Normalise heads where the model does, rotate q and k, write k and v to `slot_mapping`; return q.

        qkv is [num_tokens, q_size + 2 * kv_size]; q comes back as [num_tokens, num_heads, head_dim].
        """
        ...

    def paged_attention(self, query: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        """Return softmax(q k^T / sqrt(head_dim)) v over each row's context, [num_tokens, q_size].

        Slots that no request has written may hold anything, NaN included, and must not reach the result.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up, [num_tokens, intermediate_size]."""
        ...

    def close(self) -> None:
        """Free what the backend holds; calling it twice is harmless."""
        ...
