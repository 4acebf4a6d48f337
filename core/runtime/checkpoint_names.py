"""What a checkpoint of a geometry holds, by Hugging Face's names, and who delivers it; loads no torch.

A process that only tokenises for a worker opens the same sources, and must not pay seconds for tensors it never makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from core.model_spec import ModelSpec

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def no_progress(message: str, share: float) -> None:
    """A progress callback for callers that do not want one."""


class TensorSource(Protocol):
    """Tensors by their Hugging Face names."""

    @property
    def label(self) -> str:
        """File or folder, for messages."""
        ...

    def names(self) -> Collection[str]: ...

    def get(self, name: str) -> torch.Tensor: ...


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a checkpoint of this geometry must hold, in layer order."""
    hidden, inner, d = spec.hidden_size, spec.intermediate_size, spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        attention = {"q_proj": spec.q_size, "k_proj": spec.kv_size, "v_proj": spec.kv_size}
        for part, width in attention.items():
            shapes[f"{prefix}self_attn.{part}.weight"] = (width, hidden)
            if spec.attention_bias:
                shapes[f"{prefix}self_attn.{part}.bias"] = (width,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, spec.q_size)
        if spec.output_bias:
            shapes[f"{prefix}self_attn.o_proj.bias"] = (hidden,)
        if spec.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (d,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (d,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes[FINAL_NORM] = (hidden,)
    if not spec.tie_word_embeddings:
        shapes[HEAD] = (spec.vocab_size, hidden)
    return shapes
