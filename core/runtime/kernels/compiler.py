"""When and where kernels are compiled: Numba with its cache in the user's cache folder, keyed by these sources.

The first start on a machine compiles (seconds; see docs/performance-log.md); every later start loads machine code.
Numba notices a change of the decorated file only, so the folder's name carries a digest of the whole package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

KEPT_S = 7 * 86_400.0
"""Compiled code of other versions is kept so long after its latest use, s."""

F = TypeVar("F", bound=Callable[..., Any])


@cache
def unavailable_reason() -> str:
    """Return "" if kernels can be compiled here, else why not."""
    try:
        import llvmlite.binding as llvm
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}); install numba to use the compiled kernels"
    features = llvm.get_host_cpu_features()
    machine = llvm.get_process_triple().split("-")[0]
    if machine in ("x86_64", "amd64") and not (features.get("avx2") and features.get("fma")):
        return "this processor has no AVX2 and FMA; the compiled kernels need both"
    if machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"the compiled kernels are written for x86-64 and ARM64, not for {machine}"
    return ""


@cache
def cache_folder() -> Path:
    """Folder of the compiled code, e.g. ~/.cache/batchscope/kernels-1a2b3c4d; a temporary one if that cannot be written."""
    from platformdirs import user_cache_path

    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("BATCHSCOPE_CACHE_DIR")
    folder = (Path(root) if root else user_cache_path("batchscope")) / f"kernels-{digest.hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="batchscope-kernels-"))
    if not os.access(folder, os.W_OK):
        return Path(tempfile.mkdtemp(prefix="batchscope-kernels-"))
    remove_unused(folder)
    return folder


def remove_unused(folder: Path) -> list[Path]:
    """Remove the folders of other versions beside `folder` that no start has used for KEPT_S; returns them.

    A start notes its use in the folder's time, so another version that is still run on this machine keeps its own.
    """
    try:
        oldest_s = folder.stat().st_mtime - KEPT_S
        others = [f for f in folder.parent.glob("kernels-*") if f != folder and f.is_dir() and f.stat().st_mtime < oldest_s]
    except OSError:
        return []  # another process cleans up at the same time
    for other in others:
        shutil.rmtree(other, ignore_errors=True)
    return others


@contextmanager
def _numba_cache_in(folder: Path) -> Iterator[None]:
    """Numba reads its cache folder while it decorates; other users of Numba in this process keep theirs."""
    import numba.core.config

    numba_config: Any = numba.core.config
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba_config.CACHE_DIR = before


def part(function: F) -> F:
    """A piece of a jitted function: compiled with its caller, not callable from Python (that halves its compile time)."""
    import numba

    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    compiled: Any = numba.njit(**options)(function)
    return cast(F, compiled)


def jit(function: F) -> F:
    """Compile on first call, without the GIL, cached."""
    import numba

    with _numba_cache_in(cache_folder()):
        compiled: Any = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return cast(F, compiled)


def step_function(function: Callable[[int, int], None]) -> Any:
    """Compile `function(description address, thread)` at once into a C function; `.address` is what a team calls."""
    import numba

    with _numba_cache_in(cache_folder()):
        return numba.cfunc("void(int64, int64)", cache=True, error_model="numpy")(function)
