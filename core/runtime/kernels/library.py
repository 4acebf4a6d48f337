"""The kernel library: every registered kernel compiled for this processor and one element type, and their addresses.

    table[i] = address of KERNELS[i];  a step's description carries the table's address

LLVM compiles the library when it is first asked for and keeps the machine code in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from core.runtime.kernels import ceilings  # noqa: F401  registers its kernels after all others
from core.runtime.kernels.compiler import cache_folder
from core.runtime.kernels.emit import INT8_PAIRS, KERNELS, PAIRS, define

BF16_PAIRS, INT8_BF16_PAIRS = "bfloat16 pairs", "int8, bfloat16 pairs"
ELEMENTS = {"bfloat16": "bf16", "float32": "f32", "int8": "int8", BF16_PAIRS: PAIRS, INT8_BF16_PAIRS: INT8_PAIRS}

_lock = threading.Lock()
_alive: list[Any] = []


def module_text(element: str) -> str:
    """LLVM IR of the library for an element type."""
    module = ir.Module(f"batchscope_{element}")
    for entry in KERNELS:
        define(module, entry.name, entry.arguments, entry.result, _bound(entry.body, element))
    return str(module)


def _bound(body: Any, element: str) -> Any:
    return lambda emitter, *values: body(emitter, element, *values)


def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


def _store(path: Path, data: bytes) -> None:
    """Write through a temporary name, so that a second process never reads half a file. A read-only folder is no harm."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        logging.getLogger(__name__).info("compiled kernels are not kept: %s", error)


@cache
def _table(element: str) -> npt.NDArray[np.int64]:
    machine = _target_machine()
    digest = hashlib.sha256(f"{llvm.get_host_cpu_name()} {machine.triple} {llvm.llvm_version_info}".encode()).hexdigest()
    stored = cache_folder() / f"library-{element}-{digest[:12]}.o"
    if stored.exists():
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(stored.read_bytes()))
    else:
        module = llvm.parse_assembly(module_text(element))
        module.verify()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        builder.getModulePassManager().run(module, builder)
        _store(stored, machine.emit_object(module))
        engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _alive.append(engine)
    return np.array([engine.get_function_address(entry.name) for entry in KERNELS], np.int64)


@cache
def product_dtype(dtype: str) -> str:
    """The library whose products serve a model dtype here: that of bfloat16 pairs where the processor multiplies them."""
    has_pairs = llvm.get_host_cpu_features().get("avx512bf16", False)
    return BF16_PAIRS if dtype == "bfloat16" and has_pairs else dtype


def libraries() -> tuple[str, ...]:
    """All that this processor can run, as names for `table_address`."""
    has_pairs = product_dtype("bfloat16") == BF16_PAIRS
    return ("bfloat16", "float32", "int8", *((BF16_PAIRS, INT8_BF16_PAIRS) if has_pairs else ()))


def table_address(dtype: str) -> int:
    """Return the address of the table of kernels for a dtype: "bfloat16", "float32"; for products also "int8" and pairs."""
    with _lock:
        return int(_table(ELEMENTS[dtype]).ctypes.data)


def function_address(name: str, dtype: str) -> int:
    """Return the address of one kernel of the library."""
    index = next(i for i, entry in enumerate(KERNELS) if entry.name == name)
    with _lock:
        return int(_table(ELEMENTS[dtype])[index])
