"""What a Llama-architecture GGUF file says: geometry, tokenizer, chat template, dequantised tensors.

GGUF name                     here                                   note
token_embd                    model.embed_tokens                     no output.weight: tied head
blk.N.attn_q, attn_k          layers.N.self_attn.q_proj, k_proj      rows permuted for llama.cpp's rotary pairs (2i, 2i+1);
                                                                     undone, our pairs are (i, i + d/2)
blk.N.ffn_gate / up / down    layers.N.mlp.gate / up / down_proj
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import tokenizers

from core.errors import CheckpointError
from core.model_spec import ModelSpec
from core.runtime.checkpoint_names import HEAD, expected_shapes

if TYPE_CHECKING:
    import torch

_CONTROL, _USER_DEFINED = 3, 4  # gguf token types
_TOKENIZER_KIND = "gpt2/smollm"
_NAMES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    HEAD: "output.weight",
}


def gguf_name(name: str) -> str:
    """Translate a Hugging Face tensor name."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[part]}"


def unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order in which llama.cpp stores q and k: per head, (pair, half) back to (half, pair)."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class GgufTensors:
    """Dequantised tensors of a GGUF file under Hugging Face names; implements `TensorSource`."""

    def __init__(self, tensors: dict[str, Any], spec: ModelSpec, label: str) -> None:
        self.label = label
        self._spec = spec
        self._tensors = tensors

    def names(self) -> Collection[str]:
        back = {gguf_name(name): name for name in (*expected_shapes(self._spec), HEAD)}
        return [back.get(name, name) for name in self._tensors]

    def get(self, name: str) -> torch.Tensor:
        import torch

        stored = self._tensors[gguf_name(name)]
        try:
            values = gguf.quants.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.label} stores {stored.name} as {stored.tensor_type.name}, which the gguf package cannot dequantise"
            ) from error
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = unpermute(tensor, self._spec.num_heads if ".q_proj" in name else self._spec.num_kv_heads)
        return tensor


class GgufFile:
    """An open GGUF file. Opening parses all metadata, which takes seconds for a large vocabulary.

    Raises:
        CheckpointError: if the file is not GGUF, or its architecture is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._stem = path.stem
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise CheckpointError(f"{path} is not a readable GGUF file: {error}") from error
        self._tensor_of = {tensor.name: tensor for tensor in self._reader.tensors}
        self.spec = self._read_spec()
        self.tensors = GgufTensors(self._tensor_of, self.spec, self.label)

    def field(self, name: str, default: Any = None) -> Any:
        """Return a metadata field.

        Raises:
            CheckpointError: if it is absent and there is no default.
        """
        found = self._reader.fields.get(name)
        if found is not None:
            return found.contents()
        if default is None:
            raise CheckpointError(f"{self.label} lacks the metadata field {name}")
        return default

    def _read_spec(self) -> ModelSpec:
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise CheckpointError(f"{self.label} holds a {architecture!r} model; supported in GGUF files: llama")
        if "llama.rope.scaling.type" in self._reader.fields or "rope_freqs.weight" in self._tensor_of:
            raise CheckpointError(f"{self.label} scales its rotary positions; supported in GGUF files: unscaled")
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        adds_bos = self.field("tokenizer.ggml.add_bos_token", 0)
        return ModelSpec(
            name=self._stem.rsplit(".", 1)[0],
            vocab_size=len(self.field("tokenizer.ggml.tokens")),
            hidden_size=hidden,
            intermediate_size=self.field("llama.feed_forward_length"),
            num_layers=self.field("llama.block_count"),
            num_heads=heads,
            num_kv_heads=self.field("llama.attention.head_count_kv", heads),
            head_dim=self.field("llama.attention.key_length", hidden // heads),
            max_model_len=self.field("llama.context_length"),
            rope_theta=float(self.field("llama.rope.freq_base", 10_000.0)),
            rms_norm_eps=float(f"{self.field('llama.attention.layer_norm_rms_epsilon'):.7g}"),  # stored as float32
            tie_word_embeddings=_OUTER_NAMES[HEAD] not in self._tensor_of,
            bos_token_id=self.field("tokenizer.ggml.bos_token_id") if adds_bos else None,
            eos_token_ids=(int(self.field("tokenizer.ggml.eos_token_id")),),
            source=self.label,
        )

    def tokenizer_parts(self) -> dict[str, str]:
        """Return tokenizer (as tokenizer.json text), chat_template, bos_token and eos_token.

        A tokenizer of another kind than SmolLM's comes back as {"unsupported": its kind}; token ids still work then.
        """
        kind = f"{self.field('tokenizer.ggml.model')}/{self.field('tokenizer.ggml.pre', 'none')}"
        if kind != _TOKENIZER_KIND:
            return {"unsupported": f"a tokenizer of kind {kind}; supported in GGUF files: {_TOKENIZER_KIND}"}
        tokens = self.field("tokenizer.ggml.tokens")
        merges, kinds = self.field("tokenizer.ggml.merges"), self.field("tokenizer.ggml.token_type")
        try:
            library = smollm_tokenizer(tokens, merges, kinds)
        except Exception as error:  # the library raises plain Exception for every kind of fault
            return {"unsupported": f"a tokenizer that cannot be built: {error}"}
        return {
            "tokenizer": library.to_str(),
            "chat_template": self.field("tokenizer.chat_template", ""),
            "bos_token": tokens[self.field("tokenizer.ggml.bos_token_id", 0)],
            "eos_token": tokens[self.spec.eos_token_ids[0]],
        }


def smollm_tokenizer(tokens: list[str], merges: list[str], kinds: list[int]) -> tokenizers.Tokenizer:
    """Build SmolLM's byte-level BPE: each digit is cut off alone, then GPT-2's splitting pattern and bytes."""
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=pairs, fuse_unk=False))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    added = [
        tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    library.add_special_tokens([token for token in added if token.special])
    library.add_tokens([token for token in added if not token.special])
    return library
