"""Named tensors of a checkpoint -> the fused tensors of `ModelWeights`; what is missing or unknown is said by name.

    q_proj, k_proj, v_proj -> qkv        gate_proj, up_proj -> gate_up        lm_head -> head, or the embedding if tied

Tied or not: `tie_word_embeddings` of config.json decides. Where the setting is absent the head is untied, as in the
reference library for all supported families; a checkpoint without a head is then refused, never patched.
"""

from __future__ import annotations

import torch

from core.errors import CheckpointError
from core.model_spec import ModelSpec
from core.runtime.backend import LayerWeights, LinearWeight, ModelWeights
from core.runtime.checkpoint_names import EMBEDDING, FINAL_NORM, HEAD, Progress, TensorSource, expected_shapes, no_progress
from core.runtime.rope import rope_table

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_names(spec: ModelSpec, source: TensorSource) -> None:
    """Refuse a checkpoint whose tensors are not those of its configuration.

    Raises:
        CheckpointError: naming the file, some of the missing or unknown tensors, and what was expected.
    """
    expected = expected_shapes(spec)
    found = set(source.names())
    missing = [name for name in expected if name not in found]
    if missing:
        tied = ""
        if HEAD in missing:
            tied = (
                " (the configuration does not tie the output head to the embedding, so the head must be there;"
                " set tie_word_embeddings to true if the model was trained tied)"
            )
        raise CheckpointError(
            f"{source.label} lacks {len(missing)} of the {len(expected)} tensors of a {spec.model_type} model,"
            f" first {', '.join(missing[:3])}{tied}"
        )
    harmless = {HEAD} | {name for name in found if name.endswith("rotary_emb.inv_freq")}
    unknown = sorted(found - set(expected) - harmless)
    if unknown:
        raise CheckpointError(
            f"{source.label} holds {len(unknown)} tensors that a {spec.model_type} model of its configuration does not have,"
            f" first {', '.join(unknown[:3])}; supported: the plain tensors of Llama, Mistral, SmolLM, Qwen2, Qwen3"
        )


class _Reader:
    """Reads checked tensors in the wanted dtype and place, and reports progress."""

    def __init__(
        self, spec: ModelSpec, source: TensorSource, dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        self._shapes = expected_shapes(spec)
        self._source, self._dtype, self._device, self._progress = source, dtype, device, progress
        self._done = 0

    def read(self, *names: str) -> torch.Tensor:
        """Return the named tensors stacked on their first axis, freshly allocated."""
        parts = [self._one(name) for name in names]
        rows = sum(p.shape[0] for p in parts)
        out = torch.empty((rows, *parts[0].shape[1:]), dtype=self._dtype, device=self._device)
        at = 0
        for part in parts:
            out[at : at + part.shape[0]].copy_(part)
            at += part.shape[0]
        self._done += len(names)
        self._progress("reading weights", self._done / len(self._shapes))
        return out

    def _one(self, name: str) -> torch.Tensor:
        tensor = self._source.get(name)
        if tuple(tensor.shape) != self._shapes[name]:
            raise CheckpointError(
                f"{name} in {self._source.label} has shape {list(tensor.shape)};"
                f" its configuration asks for {list(self._shapes[name])}"
            )
        if tensor.dtype not in _FLOATS:
            raise CheckpointError(
                f"{name} in {self._source.label} is stored as {tensor.dtype}; supported: float32, float16, bfloat16"
                " (quantised checkpoints are not)"
            )
        return tensor


def pack_weights(
    spec: ModelSpec,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    progress: Progress = no_progress,
) -> ModelWeights:
    """Read a checkpoint into fused tensors.

    Args:
        max_model_len: positions for which rotary angles are tabled.

    Raises:
        CheckpointError: for missing, unknown, misshapen or quantised tensors.
    """
    check_names(spec, source)
    reader = _Reader(spec, source, dtype, device, progress)
    embedding = reader.read(EMBEDDING)
    layers = [_read_layer(spec, reader, f"model.layers.{index}.") for index in range(spec.num_layers)]
    final_norm = reader.read(FINAL_NORM)
    head = embedding if spec.tie_word_embeddings else reader.read(HEAD)
    cos, sin = rope_table(spec, max_model_len)
    return ModelWeights(embedding, layers, final_norm, LinearWeight(head), cos.to(device), sin.to(device))


def _read_layer(spec: ModelSpec, reader: _Reader, prefix: str) -> LayerWeights:
    qkv = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
    qkv_bias = reader.read(*(f"{name}.bias" for name in qkv)) if spec.attention_bias else None
    o_bias = reader.read(f"{prefix}self_attn.o_proj.bias") if spec.output_bias else None
    return LayerWeights(
        input_norm=reader.read(f"{prefix}input_layernorm.weight"),
        qkv=LinearWeight(reader.read(*(f"{name}.weight" for name in qkv)), qkv_bias),
        o=LinearWeight(reader.read(f"{prefix}self_attn.o_proj.weight"), o_bias),
        post_norm=reader.read(f"{prefix}post_attention_layernorm.weight"),
        gate_up=LinearWeight(reader.read(f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight")),
        down=LinearWeight(reader.read(f"{prefix}mlp.down_proj.weight")),
        q_norm=reader.read(f"{prefix}self_attn.q_norm.weight") if spec.qk_norm else None,
        k_norm=reader.read(f"{prefix}self_attn.k_norm.weight") if spec.qk_norm else None,
    )


def all_tensors(weights: ModelWeights) -> list[torch.Tensor]:
    """Return the stored weights, a tied head once; tables of angles are not weights."""
    tensors = [weights.embedding, weights.final_norm]
    if not weights.is_tied:
        tensors.append(weights.head.weight)
    for layer in weights.layers:
        optional = (layer.qkv.bias, layer.o.bias, layer.q_norm, layer.k_norm)
        tensors += [layer.input_norm, layer.post_norm, *(t for t in optional if t is not None)]
        tensors += [w.weight for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    return tensors


def weight_bytes(weights: ModelWeights) -> tuple[int, int]:
    """Return (bytes stored, bytes that one step reads).

    A step looks up a few rows of the embedding and reads the head whole; if the two are one tensor it is read once,
    as the head.
    """
    stored = sum(t.numel() * t.element_size() for t in all_tensors(weights))
    lookup_only = 0 if weights.is_tied else weights.embedding.numel() * weights.embedding.element_size()
    return stored, stored - lookup_only
