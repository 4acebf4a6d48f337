"""A Hugging Face folder (or hub id) as a model: config.json, *.safetensors, tokenizer.json.

Only what the decoder really computes is accepted; a setting that would change the result and is not implemented
(another activation, an MLP bias, a window in some layers only) is refused by name rather than ignored.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from core.errors import CheckpointError, ConfigError
from core.model_spec import SUPPORTED_MODEL_TYPES, ModelSpec
from core.runtime.chat_template import ChatTemplate
from core.runtime.checkpoint_names import Progress, no_progress
from core.runtime.tokenizer import LibraryTokenizer, load_library

if TYPE_CHECKING:
    import torch

    from core.runtime.backend import ModelWeights

_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja"]
_INDEX = "model.safetensors.index.json"


def download(repo_id: str, progress: Progress = no_progress) -> Path:
    """Fetch a repository from the Hugging Face hub into its cache and return the folder.

    Raises:
        CheckpointError: if the id is no id, the hub does not know it, or the network does not allow it.
    """
    import huggingface_hub  # only where the hub is asked

    progress(f"downloading {repo_id} from huggingface.co", 0.0)
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=_WANTED_FILES))
    except Exception as error:  # hub, HTTP and file errors have no common base; all mean that the model is not here
        raise CheckpointError(
            f"{repo_id!r} is no local folder and could not be fetched from huggingface.co"
            f" ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no detail'});"
            " give a local folder, or check the id and whether this network lets the hub through"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: if the file cannot be read or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


class SafetensorsFile:
    """Tensors of one safetensors file; implements `core.runtime.weights.TensorSource`.

    Raises:
        CheckpointError: if the file is missing or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        try:
            self._handle: Any = safetensors.safe_open(str(path), framework="pt")
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing; download it again") from error
        except (OSError, safetensors.SafetensorError) as error:
            size = path.stat().st_size
            raise CheckpointError(f"{path} ({size} bytes) is not a readable safetensors file: {error}") from error

    def names(self) -> Collection[str]:
        return list(self._handle.keys())

    def get(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._handle.get_tensor(name)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{self.label} does not give tensor {name}: {error}") from error
        return tensor


class SafetensorsFolder:
    """Tensors of one or several safetensors files in a folder; implements `core.runtime.weights.TensorSource`.

    Raises:
        CheckpointError: if there are no such files, one named by the index is missing, or one cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.label = str(folder)
        index, single = folder / _INDEX, folder / "model.safetensors"
        if index.exists():
            places = {str(name): folder / str(shard) for name, shard in read_json(index).get("weight_map", {}).items()}
            files = {path: SafetensorsFile(path) for path in sorted(set(places.values()))}
            self._file_of = {name: files[path] for name, path in places.items()}
        elif single.exists():
            file = SafetensorsFile(single)
            self._file_of = dict.fromkeys(file.names(), file)
        else:
            found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors"))
            raise CheckpointError(
                f"{folder} has no model.safetensors and no {_INDEX}; found weights: {', '.join(found) or 'none'};"
                " supported: safetensors"
            )

    def names(self) -> Collection[str]:
        return self._file_of.keys()

    def get(self, name: str) -> torch.Tensor:
        return self._file_of[name].get(name)


def read_spec(folder: Path, label: str) -> ModelSpec:
    """Read the geometry from config.json, and all end tokens from generation_config.json too.

    Raises:
        CheckpointError: naming the file, the setting found and what is supported.
    """
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(f"{folder} has no config.json; supported: folders of {', '.join(SUPPORTED_MODEL_TYPES)} models")
    config = read_json(path)
    try:
        spec = ModelSpec.from_hf_config(config, name=label, source=str(path))
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    _refuse_unsupported(path, config, spec)
    generation = folder / "generation_config.json"
    if generation.exists():
        more = read_json(generation).get("eos_token_id")
        ids = more if isinstance(more, list) else [] if more is None else [more]
        spec = dataclasses.replace(spec, eos_token_ids=tuple(dict.fromkeys((*spec.eos_token_ids, *ids))))
    return spec


def _refuse_unsupported(path: Path, config: dict[str, Any], spec: ModelSpec) -> None:
    def refuse(setting: str, found: object, supported: str) -> None:
        raise CheckpointError(f"{path} sets {setting} to {found!r}; supported: {supported}")

    if spec.model_type not in SUPPORTED_MODEL_TYPES:
        refuse("model_type", spec.model_type, f"{', '.join(SUPPORTED_MODEL_TYPES)} (mixtures of experts only for predictions)")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        refuse("hidden_act", config["hidden_act"], "silu")
    if config.get("mlp_bias"):
        refuse("mlp_bias", True, "false")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        refuse("partial_rotary_factor", config["partial_rotary_factor"], "1.0")
    if config.get("quantization_config"):
        refuse("quantization_config", config["quantization_config"].get("quant_method"), "plain float weights")
    windowed = spec.sliding_window is not None and spec.model_type.startswith("qwen")
    if windowed and int(config.get("max_window_layers", 28)) > 0:
        refuse("use_sliding_window", True, "false, or max_window_layers 0 (a window in all layers)")


class FolderSource:
    """A model in a folder.

    Args:
        folder: holds config.json.
        label: name for people; None takes the folder's.

    Raises:
        CheckpointError: if config.json is missing or describes an unsupported model.
    """

    fallback = ""

    def __init__(self, folder: Path, label: str | None = None) -> None:
        self._folder = folder
        self.label = label or folder.resolve().name
        self.spec = read_spec(folder, self.label)

    def weights(
        self, dtype: torch.dtype, device: torch.device, max_model_len: int, progress: Progress = no_progress
    ) -> ModelWeights:
        from core.runtime.weights import pack_weights

        return pack_weights(self.spec, SafetensorsFolder(self._folder), dtype, device, max_model_len, progress)

    def tokenizer(self) -> LibraryTokenizer:
        path = self._folder / "tokenizer.json"
        if not path.exists():
            others = sorted(p.name for p in self._folder.iterdir() if p.name.startswith(("tokenizer", "vocab", "merges")))
            raise CheckpointError(
                f"{self._folder} has no tokenizer.json; found: {', '.join(others) or 'no tokenizer'}; supported: tokenizer.json"
            )
        library = load_library(str(path))
        settings_path = self._folder / "tokenizer_config.json"
        settings = read_json(settings_path) if settings_path.exists() else {}
        bos = _token_text(settings.get("bos_token"))
        own = library.encode("", add_special_tokens=True).ids
        adds_bos = bool(settings.get("add_bos_token")) or (bool(own) and own[0] == self.spec.bos_token_id)
        bos_id = self.spec.bos_token_id if bos is None else library.token_to_id(bos)
        eos = _token_text(settings.get("eos_token"))
        eos_id = None if eos is None else library.token_to_id(eos)
        ends = self.spec.eos_token_ids if eos_id is None else tuple(dict.fromkeys((*self.spec.eos_token_ids, eos_id)))
        return LibraryTokenizer(
            library,
            vocab_size=self.spec.vocab_size,
            bos_token_id=bos_id if adds_bos else None,
            eos_token_ids=ends,
            chat_template=self._chat_template(settings, bos or "", eos or ""),
        )

    def _chat_template(self, settings: dict[str, Any], bos: str, eos: str) -> ChatTemplate | None:
        path = self._folder / "chat_template.jinja"
        text = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
        if isinstance(text, list):  # several named templates
            text = next((t["template"] for t in text if t.get("name") == "default"), None)
        if not text:
            return None
        return ChatTemplate(str(text), {"bos_token": bos, "eos_token": eos}, self.label)


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is a string or an object with its content."""
    return value.get("content") if isinstance(value, dict) else value
