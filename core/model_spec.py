"""Geometry of a decoder, and the counts that follow from it.

One picture: a Llama-family layer holds q, k, v, o projections and a gated MLP; the head is tied to
the embedding or not. `ModelSpec` counts what the tensors really are, never a headline size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1, "int4": 0.5}

ROPE_KINDS = ("default", "linear", "llama3")
MAX_SIZE = 1_000_000_000
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_model_len",
)

SUPPORTED_MODEL_TYPES = ("llama", "smollm", "mistral", "qwen2", "qwen3")

# What the reference library (transformers 5) takes where config.json is silent; other families default to the query heads,
# no window and 2048 or 32768 positions.
_DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_HEAD_DIM = {"qwen3": 128}
_DEFAULT_WINDOW = {"mistral": 4096}
_DEFAULT_POSITIONS = {"mistral": 131_072, "qwen2": 32_768, "qwen3": 32_768}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary scaling: kind is "default", "linear" or "llama3" (as in config.json's rope_scaling)."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's geometry; sizes are counts of elements.

    Attributes:
        head_dim: size of one head; need not be hidden_size / num_heads.
        attention_bias: q, k, v projections have a bias (Qwen2).
        output_bias: the output projection of the attention has one too (Llama with attention_bias).
        qk_norm: RMSNorm on each query and key head (Qwen3).
        num_experts: 0 for a dense model; else experts a layer, of which num_experts_per_tok run.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int = 2048
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling = RopeScaling()
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    model_type: str = "llama"
    source: str = ""
    output_bias: bool = False

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
                raise ConfigError(f"{name} of model {self.name} is {value!r}; it must be a whole number from 1 to {MAX_SIZE}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model {self.name} has {self.num_heads} query heads and {self.num_kv_heads} KV heads;"
                " the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim of model {self.name} is {self.head_dim}; rotary positions need an even number")

    @property
    def q_size(self) -> int:
        """Width of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key (and of the value) projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_parameters_per_layer(self) -> int:
        """Matrix parameters of q, k, v and o in one layer."""
        return self.hidden_size * (2 * self.q_size + 2 * self.kv_size)

    @property
    def mlp_parameters_per_expert(self) -> int:
        """Matrix parameters of one gated MLP (gate, up, down)."""
        width = self.moe_intermediate_size if self.num_experts else self.intermediate_size
        return 3 * self.hidden_size * width

    @property
    def head_parameters(self) -> int:
        """Matrix parameters of the output head, tied or not."""
        return self.vocab_size * self.hidden_size

    @property
    def small_parameters(self) -> int:
        """Norm weights and biases of the whole model."""
        per_layer = 2 * self.hidden_size
        if self.attention_bias:
            per_layer += self.q_size + 2 * self.kv_size
        if self.output_bias:
            per_layer += self.hidden_size
        if self.qk_norm:
            per_layer += 2 * self.head_dim
        if self.num_experts:
            per_layer += self.hidden_size * self.num_experts
        return self.num_layers * per_layer + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All stored parameters, embedding included (once if tied)."""
        experts = max(self.num_experts, 1)
        layer = self.attention_parameters_per_layer + experts * self.mlp_parameters_per_expert
        heads = self.head_parameters * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + heads + self.small_parameters

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Bytes of keys and values of one token over all layers: 2 * n_layer * n_kv * d * c."""
        return 2 * self.num_layers * self.kv_size * DTYPE_BYTES[kv_dtype]

    @staticmethod
    def from_hf_config(config: dict[str, Any], name: str = "", source: str = "") -> ModelSpec:
        """Read a Hugging Face config.json.

        Raises:
            ConfigError: for an unsupported model_type or rope scaling, or a missing field.
        """
        model_type = str(config.get("model_type", ""))
        is_moe = model_type in ("mixtral", "qwen2_moe", "qwen3_moe")
        if model_type not in SUPPORTED_MODEL_TYPES and not is_moe:
            raise ConfigError(
                f"config.json says model_type {model_type!r}; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
                " (and mixtral, qwen2_moe, qwen3_moe for predictions only)"
            )
        needed = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
        if not (is_moe and "moe_intermediate_size" in config):
            needed.append("intermediate_size")
        missing = [k for k in needed if k not in config]
        if missing:
            raise ConfigError(f"config.json of {name or model_type} lacks {', '.join(missing)}")
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        eos = config.get("eos_token_id")
        eos_ids = tuple(eos) if isinstance(eos, list) else (() if eos is None else (int(eos),))
        positions = int(config.get("max_position_embeddings") or _DEFAULT_POSITIONS.get(model_type, 2048))
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = config.get("rope_theta") or rope.get("rope_theta") or 10_000.0
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        if kind not in ROPE_KINDS:
            raise ConfigError(
                f"rope scaling {kind!r} of {name or model_type} is not supported; supported: {', '.join(ROPE_KINDS)}"
            )
        scaling = RopeScaling(
            kind=kind,
            factor=float(rope.get("factor", 1.0)),
            low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
            high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
            original_max_position_embeddings=int(rope.get("original_max_position_embeddings") or positions),
        )
        moe_width = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
        uses_window = bool(config.get("use_sliding_window", model_type == "mistral"))
        attention_bias = bool(config.get("attention_bias", False))
        kv_heads = config.get("num_key_value_heads", _DEFAULT_KV_HEADS.get(model_type))
        head_dim = config.get("head_dim", _DEFAULT_HEAD_DIM.get(model_type))
        # Absent tie_word_embeddings means untied: the default of LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config alike.
        return ModelSpec(
            name=name or str(config.get("_name_or_path") or model_type),
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config.get("intermediate_size") or config.get("moe_intermediate_size") or 1),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(kv_heads or heads),
            head_dim=int(head_dim or hidden // heads),
            max_model_len=positions,
            rope_theta=float(theta),
            rope_scaling=scaling,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=model_type.startswith("qwen2") or attention_bias,
            output_bias=attention_bias and not model_type.startswith("qwen2"),
            qk_norm=model_type.startswith("qwen3"),
            sliding_window=config.get("sliding_window", _DEFAULT_WINDOW.get(model_type)) if uses_window else None,
            num_experts=int(config.get("num_local_experts") or config.get("num_experts") or 0) if is_moe else 0,
            num_experts_per_tok=int(config.get("num_experts_per_tok") or 0) if is_moe else 0,
            moe_intermediate_size=moe_width if is_moe else 0,
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=eos_ids,
            model_type=model_type,
            source=source,
        )


TINY = ModelSpec(
    name="tiny-synthetic", vocab_size=256, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, max_model_len=512, tie_word_embeddings=True, bos_token_id=None, eos_token_ids=(0,),
)  # fmt: skip

SMOLLM2_135M = ModelSpec(
    name="SmolLM2-135M-Instruct", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
    num_kv_heads=3, head_dim=64, max_model_len=8192, rope_theta=100_000.0, tie_word_embeddings=True, bos_token_id=1,
    eos_token_ids=(2,), source="HuggingFaceTB/SmolLM2-135M-Instruct config.json",
)  # fmt: skip
