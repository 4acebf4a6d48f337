"""The compiled kernels behind the `Backend` protocol: a whole step in one call, the plain path until they are ready.

    bind -> compile (or load) and pack in a thread of their own -> forward takes over between two steps

Keys and values keep the plain layout, so the change of path needs no copy of the cache. On a machine that has run
before, compiled code comes from the user's cache folder and `bind` simply waits for it.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import TYPE_CHECKING

import torch

from core.errors import ConfigError
from core.model_spec import ModelSpec
from core.runtime.backend import Best, KVCache, ModelWeights, StepBatch
from core.runtime.input_batch import RowCalls
from core.runtime.kernels.compiler import cache_folder, unavailable_reason
from core.runtime.plain_backend import PlainBackend

if TYPE_CHECKING:
    from core.runtime.kernels.fast_path import FastPath

_LOG = logging.getLogger(__name__)
_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
MOST_HEADS = 144  # of one query token, all in one attention item
_MARKER = "complete"


def unsupported_reason(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> str:
    """Return "" if the kernels can run a model, else why not."""
    if device.type != "cpu":
        return f"the compiled kernels run on a CPU, not on {device}"
    if dtype not in _DTYPES:
        return f"the compiled kernels know bfloat16 and float32, not {dtype}"
    if spec.num_experts:
        return "the compiled kernels know dense models only"
    if spec.head_dim % 16 or spec.hidden_size % 16:
        return f"head_dim {spec.head_dim} and hidden_size {spec.hidden_size} must be multiples of 16"
    if spec.num_heads > MOST_HEADS:
        return f"the model has {spec.num_heads} query heads; at most {MOST_HEADS} are supported"
    return unavailable_reason()


def create_backend(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, weight_dtype: str = "same", *, wait: bool | None = None
) -> KernelBackend | None:
    """Return a backend with compiled kernels, or None where they cannot run this model.

    Args:
        weight_dtype: "same" as the model, or "int8".
        wait: True waits for the compiler in `bind`; False serves with the plain path meanwhile; None waits only if
            the compiled code is in the cache already.
    """
    reason = unsupported_reason(spec, dtype, device)
    if reason:
        _LOG.info("plain path: %s", reason)
        return None
    if wait is None:
        # int8 never begins with the plain path, whose weights are others
        wait = weight_dtype == "int8" or is_prepared()
    return KernelBackend(wait, weight_dtype=weight_dtype)


def is_prepared() -> bool:
    """True if this version's kernels have been compiled on this machine before."""
    return not unavailable_reason() and (cache_folder() / _MARKER).exists()


def prepare() -> None:
    """Compile everything into the user's cache folder; at installation or before a test run."""
    from core.runtime.kernels.fast_path import compile_all
    from core.runtime.kernels.library import libraries

    compile_all(libraries(), 2)
    (cache_folder() / _MARKER).touch()


class KernelBackend(PlainBackend):
    """Implements `core.runtime.backend.Backend`.

    Args:
        wait: compile in `bind` rather than beside the first steps.
        threads: size of the team; 0 takes torch.get_num_threads().
        weight_dtype: "same", or "int8" (a failure to compile then raises: there is no plain path for it).
        widen: multiply in float32 also where the processor multiplies bfloat16.
        coded: keep a coded copy of bfloat16 weights for small steps, see `coding`.
    """

    def __init__(
        self, wait: bool = True, threads: int = 0, weight_dtype: str = "same", *, widen: bool = False, coded: bool = True
    ) -> None:
        super().__init__()
        self._widen, self._coded = widen, coded
        self._weight_dtype = weight_dtype
        self._wait = wait
        self._threads = threads or torch.get_num_threads()
        self._job: threading.Thread | None = None
        self._failure = ""
        self._fast: FastPath | None = None
        self._built: FastPath | None = None
        self._ran_fast = False
        self._is_closed = False
        self._loaded: StepBatch | None = None

    @property
    def name(self) -> str:
        ready = self._fast or self._built
        if ready is not None:
            notes = [f"{self._threads} threads"]
            notes += ["int8 weights"] if self._weight_dtype == "int8" else []
            notes += ["bfloat16 products"] if "pairs" in ready.products else []
            notes += [f"weights coded without loss up to {ready.coded_tokens} rows"] if ready.coded_tokens else []
            return f"compiled kernels, {', '.join(notes)}"
        return f"plain PyTorch ({self._failure or 'kernels are being compiled'})"

    def bind(self, spec: ModelSpec, weights: ModelWeights) -> None:
        super().bind(spec, weights)
        self._job = threading.Thread(target=self._build, args=(spec, weights), name="kernel-compiler", daemon=True)
        self._job.start()
        atexit.register(self.wait)  # the end of the process must not take the compiler's libraries from under it
        if self._wait:
            self.wait()
        if self._failure and self._weight_dtype == "int8":
            raise ConfigError(f"weight_dtype int8 needs the compiled kernels: {self._failure}; choose same")

    @property
    def saved_bytes(self) -> int:
        """Bytes of weights that a step reads less than the plain path would, because they are packed in int8."""
        ready = self._fast or self._built
        return 0 if ready is None else ready.saved_bytes

    @property
    def coded_tokens(self) -> int:
        """A step of at most so many tokens reads a coded copy of the weights; 0 where there is none."""
        ready = self._fast or self._built
        return 0 if ready is None else ready.coded_tokens

    @property
    def coded_bytes(self) -> int:
        """Bytes of memory that the coded copy takes."""
        ready = self._fast or self._built
        return 0 if ready is None else ready.coded_bytes

    @property
    def coded_saved_bytes(self) -> int:
        """Bytes of weights that a step of few tokens reads less than the plain path would."""
        ready = self._fast or self._built
        return 0 if ready is None else ready.coded_saved_bytes

    def wait(self) -> None:
        """Wait until the kernels are compiled; the next step uses them."""
        if self._job is not None:
            self._job.join()
            atexit.unregister(self.wait)

    def bind_cache(self, cache: KVCache) -> None:
        super().bind_cache(cache)
        if self._fast is not None:
            self._fast.bind_cache(cache)

    def prepare(self, batch: StepBatch) -> None:
        """See `Backend`; also the moment in which kernels that are ready now take over."""
        self._loaded = None
        if self._fast is None:
            if self._built is None:
                return
            self._fast, self._built = self._built, None
            self._fast.release_plain_weights()
            # OpenMP's threads spin for a while after each PyTorch operation, on the cores that the team needs
            torch.set_num_threads(1)
            self._fast.bind_cache(self._cache)
        self._fast.load(batch)
        self._loaded = batch

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """Run the step; the logits are overwritten by the next one unless they are few."""
        if self._loaded is not batch:
            self.prepare(batch)
        loaded, self._loaded = self._loaded, None
        self._ran_fast = loaded is not None and self._fast is not None
        return self._fast.run() if self._fast is not None and self._ran_fast else None

    @property
    def row_calls(self) -> RowCalls | None:
        """Compiled calls for the rows of a decode step, once the kernels are in use."""
        return self._fast.row_calls if self._fast is not None else None

    def best_tokens(self) -> Best | None:
        """See `Backend`."""
        return self._fast.best_tokens() if self._fast is not None and self._ran_fast else None

    def close(self) -> None:
        """Give everything back at once; a compiler that is still at work ends by itself, and what it makes is dropped."""
        self._is_closed = True
        self._fast = self._built = None
        super().close()

    def _build(self, spec: ModelSpec, weights: ModelWeights) -> None:
        try:
            from core.runtime.kernels.fast_path import FastPath

            dtype = _DTYPES[weights.embedding.dtype]
            self._built = FastPath(spec, weights, dtype, self._threads, self._weight_dtype, widen=self._widen, coded=self._coded)
            if self._is_closed:
                self._built = None
            (cache_folder() / _MARKER).touch()
        except Exception as error:
            self._failure = f"kernels failed to compile: {error}"
            _LOG.exception("kernels failed to compile; the plain path goes on")
