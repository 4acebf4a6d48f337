"""Known models by the geometry of their config.json, each with the parameter count that its publisher states.

A preset is what `ModelSpec.from_hf_config` reads, so a pasted config.json and a preset take one path. The count
that follows from the geometry must equal the published one to the last parameter; a test holds each row to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import NoneType
from typing import Any

from core.errors import ConfigError
from core.model_spec import ROPE_KINDS, ModelSpec


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One preset.

    Attributes:
        repo: Hugging Face repository whose config.json the geometry is from.
        published_parameters: sum of the tensors in the repository's safetensors index, a tied head counted once.
    """

    name: str
    repo: str
    config: dict[str, Any]
    published_parameters: int

    @property
    def spec(self) -> ModelSpec:
        """The geometry as the rest of the program reads it."""
        return ModelSpec.from_hf_config(self.config, name=self.name, source=f"{self.repo} config.json")


def _config(
    model_type: str, vocab: int, hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, length: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": length,
        "tie_word_embeddings": False,
        **more,
    }


_TIED = {"tie_word_embeddings": True}
_SMOL = {**_TIED, "rope_theta": 100_000.0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}
_LLAMA = {
    "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
_QWEN = {"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6, "eos_token_id": 151645, "use_sliding_window": False}
_QWEN3 = {**_QWEN, "head_dim": 128}

CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry("SmolLM2 135M", "HuggingFaceTB/SmolLM2-135M-Instruct",
        _config("llama", 49152, 576, 1536, 30, 9, 3, 8192, **_SMOL), 134_515_008),
    CatalogEntry("SmolLM2 360M", "HuggingFaceTB/SmolLM2-360M-Instruct",
        _config("llama", 49152, 960, 2560, 32, 15, 5, 8192, **_SMOL), 361_821_120),
    CatalogEntry("SmolLM2 1.7B", "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        _config("llama", 49152, 2048, 8192, 24, 32, 32, 8192, **(_SMOL | {"rope_theta": 130_000.0})), 1_711_376_384),
    CatalogEntry("Llama 3.1 8B", "meta-llama/Llama-3.1-8B-Instruct",
        _config("llama", 128256, 4096, 14336, 32, 32, 8, 131072, **_LLAMA), 8_030_261_248),
    CatalogEntry("Llama 3.1 70B", "meta-llama/Llama-3.1-70B-Instruct",
        _config("llama", 128256, 8192, 28672, 80, 64, 8, 131072, **_LLAMA), 70_553_706_496),
    CatalogEntry("Qwen2.5 0.5B", "Qwen/Qwen2.5-0.5B-Instruct",
        _config("qwen2", 151936, 896, 4864, 24, 14, 2, 32768, **_QWEN, **_TIED), 494_032_768),
    CatalogEntry("Qwen2.5 1.5B", "Qwen/Qwen2.5-1.5B-Instruct",
        _config("qwen2", 151936, 1536, 8960, 28, 12, 2, 32768, **_QWEN, **_TIED), 1_543_714_304),
    CatalogEntry("Qwen2.5 7B", "Qwen/Qwen2.5-7B-Instruct",
        _config("qwen2", 152064, 3584, 18944, 28, 28, 4, 32768, **_QWEN), 7_615_616_512),
    CatalogEntry("Qwen2.5 14B", "Qwen/Qwen2.5-14B-Instruct",
        _config("qwen2", 152064, 5120, 13824, 48, 40, 8, 32768, **_QWEN), 14_770_033_664),
    CatalogEntry("Qwen2.5 32B", "Qwen/Qwen2.5-32B-Instruct",
        _config("qwen2", 152064, 5120, 27648, 64, 40, 8, 32768, **_QWEN), 32_763_876_352),
    CatalogEntry("Qwen2.5 72B", "Qwen/Qwen2.5-72B-Instruct",
        _config("qwen2", 152064, 8192, 29568, 80, 64, 8, 32768, **_QWEN), 72_706_203_648),
    CatalogEntry("Qwen3 0.6B", "Qwen/Qwen3-0.6B",
        _config("qwen3", 151936, 1024, 3072, 28, 16, 8, 40960, **_QWEN3, **_TIED), 596_049_920),
    CatalogEntry("Qwen3 1.7B", "Qwen/Qwen3-1.7B",
        _config("qwen3", 151936, 2048, 6144, 28, 16, 8, 40960, **_QWEN3, **_TIED), 1_720_574_976),
    CatalogEntry("Qwen3 4B", "Qwen/Qwen3-4B",
        _config("qwen3", 151936, 2560, 9728, 36, 32, 8, 40960, **_QWEN3, **_TIED), 4_022_468_096),
    CatalogEntry("Qwen3 8B", "Qwen/Qwen3-8B",
        _config("qwen3", 151936, 4096, 12288, 36, 32, 8, 40960, **_QWEN3), 8_190_735_360),
    CatalogEntry("Qwen3 14B", "Qwen/Qwen3-14B",
        _config("qwen3", 151936, 5120, 17408, 40, 40, 8, 40960, **_QWEN3), 14_768_307_200),
    CatalogEntry("Qwen3 32B", "Qwen/Qwen3-32B",
        _config("qwen3", 151936, 5120, 25600, 64, 64, 8, 40960, **_QWEN3), 32_762_123_264),
    CatalogEntry("Qwen3 30B-A3B", "Qwen/Qwen3-30B-A3B",
        _config("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 40960, **_QWEN3, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=768), 30_532_122_624),
    CatalogEntry("Mistral 7B v0.3", "mistralai/Mistral-7B-Instruct-v0.3",
        _config("mistral", 32768, 4096, 14336, 32, 32, 8, 32768, rope_theta=1_000_000.0, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, sliding_window=None), 7_248_023_552),
    CatalogEntry("Mixtral 8x7B", "mistralai/Mixtral-8x7B-Instruct-v0.1",
        _config("mixtral", 32000, 4096, 14336, 32, 32, 8, 32768, rope_theta=1_000_000.0, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, sliding_window=None, num_local_experts=8, num_experts_per_tok=2), 46_702_792_704),
)  # fmt: skip

MODELS: dict[str, CatalogEntry] = {entry.name: entry for entry in CATALOG}


def model_named(name: str) -> ModelSpec:
    """Return the geometry of a preset.

    Raises:
        ConfigError: for an unknown name; the message lists the known ones.
    """
    if name not in MODELS:
        raise ConfigError(f"model {name!r} is not known; known: {', '.join(MODELS)}. Or paste its config.json")
    return MODELS[name].spec


def guess_model(name: str) -> ModelSpec | None:
    """The catalogue's geometry for the name under which a server serves a model; None if it is not clear."""
    served = name.lower().rstrip("/").rsplit("/", 1)[-1]
    for entry in CATALOG:
        known = entry.repo.lower().rsplit("/", 1)[-1]
        if served and (known == served or known.removesuffix("-instruct") == served):
            return entry.spec
    return None


def spec_from_config_json(text: str, name: str = "pasted config.json") -> ModelSpec:
    """Read a pasted or uploaded config.json.

    Raises:
        ConfigError: with line and column where the text is not JSON, or with the field that is missing or not supported.
    """
    try:
        config = json.loads(text.lstrip("\ufeff"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets without end
        raise ConfigError(f"{name} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{name} holds a {type(config).__name__}; a config.json is one object")
    inner = config.get("text_config")  # multimodal models keep the language model one level down
    if isinstance(inner, dict) and "hidden_size" not in config:
        config = inner
    _check_kinds(config, name)
    if _rope_kind(config) not in ROPE_KINDS:  # it moves no byte and costs no time; only the live engine has to compute it
        config = {k: v for k, v in config.items() if k not in ("rope_scaling", "rope_parameters")}
    try:
        return ModelSpec.from_hf_config(config, name=str(config.get("_name_or_path") or name), source=name)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} holds a value of the wrong kind: {error}") from None


_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "sliding_window",
)  # fmt: skip


def _check_kinds(config: dict[str, Any], name: str) -> None:
    """Refuse what would be cut to a whole number without a word, and what is not a table.

    Raises:
        ConfigError: naming the field.
    """
    for key in _COUNTS:
        value = config.get(key)
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ConfigError(f"{key} of {name} is {value!r}; give a whole number")
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key), (dict, NoneType)):
            raise ConfigError(f"{key} of {name} is {config[key]!r}; give an object, or leave it out")


def _rope_kind(config: dict[str, Any]) -> str:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(rope.get("rope_type") or rope.get("type") or "default")
