"""The model in the forms that other engines read: a Hugging Face folder with exactly the weights that run here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from core.model_spec import ModelSpec
from core.runtime.backend import LayerWeights, ModelWeights
from core.runtime.model_source import open_model
from core.runtime.tokenizer import LibraryTokenizer


def hf_config(spec: ModelSpec) -> dict[str, object]:
    """config.json of a Llama-family model.

    Raises:
        SystemExit: for a family that this export does not write.
    """
    if spec.attention_bias or spec.qk_norm or spec.num_experts or spec.rope_scaling.kind != "default":
        raise SystemExit(f"{spec.name} is not a plain Llama model; give --model-folder with a folder that the peers can read")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size, "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_heads, "head_dim": spec.head_dim,
        "num_key_value_heads": spec.num_kv_heads, "max_position_embeddings": spec.max_model_len,
        "rope_theta": spec.rope_theta, "rms_norm_eps": spec.rms_norm_eps, "tie_word_embeddings": spec.tie_word_embeddings,
        "bos_token_id": spec.bos_token_id, "eos_token_id": list(spec.eos_token_ids), "attention_bias": False,
    }  # fmt: skip


def _layer_tensors(spec: ModelSpec, layer: LayerWeights, prefix: str) -> dict[str, torch.Tensor]:
    q, k, v = layer.qkv.weight.split((spec.q_size, spec.kv_size, spec.kv_size))
    gate, up = layer.gate_up.weight.chunk(2)
    named = {
        "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.o.weight,
        "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down.weight,
        "input_layernorm": layer.input_norm, "post_attention_layernorm": layer.post_norm,
    }  # fmt: skip
    return {f"{prefix}{name}.weight": tensor.clone().contiguous() for name, tensor in named.items()}


def hf_tensors(spec: ModelSpec, weights: ModelWeights) -> dict[str, torch.Tensor]:
    """All tensors under Hugging Face's names, fused projections taken apart."""
    tensors = {"model.embed_tokens.weight": weights.embedding.clone(), "model.norm.weight": weights.final_norm.clone()}
    if not weights.is_tied:
        tensors["lm_head.weight"] = weights.head.weight.clone()
    for index, layer in enumerate(weights.layers):
        tensors |= _layer_tensors(spec, layer, f"model.layers.{index}.")
    return tensors


def export_tokenizer(model: str, target: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json beside the weights; kept if they are there.

    Raises:
        SystemExit: for a model without a tokenizer of its own.
    """
    if (target / "tokenizer_config.json").exists():
        return
    source = open_model(model)
    tokenizer = source.tokenizer()
    if not isinstance(tokenizer, LibraryTokenizer):
        raise SystemExit(f"{source.label} has no tokenizer that a server could load")
    names = {token_id: text for text, token_id in tokenizer.control_tokens.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": source.spec.max_model_len,
        "bos_token": names.get(source.spec.bos_token_id or -1), "eos_token": names.get(next(iter(source.spec.eos_token_ids), -1)),
    }  # fmt: skip
    (target / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def export_folder(model: str, target: Path) -> Path:
    """Write the model as bfloat16 into `target` (config.json, model.safetensors) and return it; kept if it is there."""
    if (target / "config.json").exists():
        return target
    source = open_model(model)
    spec = dataclasses.replace(source.spec)
    config = hf_config(spec)
    weights = source.weights(torch.bfloat16, torch.device("cpu"), min(spec.max_model_len, 2048))
    target.mkdir(parents=True, exist_ok=True)
    save_file(hf_tensors(spec, weights), str(target / "model.safetensors"), metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return target
