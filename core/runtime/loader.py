"""From a model source to a runner: on what it runs, and who computes."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from core.clock import Clock
from core.config import EngineConfig
from core.errors import ConfigError
from core.model_spec import ModelSpec
from core.runtime.backend import TORCH_DTYPES, Backend
from core.runtime.checkpoint_names import Progress, no_progress
from core.runtime.model_runner import ModelRunner
from core.runtime.model_source import ModelSource, open_model
from core.runtime.plain_backend import PlainBackend


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
    if device.type == "cuda" and prefer == "auto" and config.weight_dtype == "same":
        from core.runtime.gpu.backend import create_backend

        progress("preparing the device's kernels", 0.0)
        chosen: Backend = create_backend(source.spec, weights, config.scheduler.max_num_seqs)
    else:
        chosen = pick_backend(source.spec, dtype, device, config.weight_dtype, prefer)
    return ModelRunner(source.spec, weights, chosen, config.cache, clock=clock, label=source.label, fallback=source.fallback)
