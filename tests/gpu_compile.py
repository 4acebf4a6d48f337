"""Compile every Triton kernel for a device that need not be here: python tests/gpu_compile.py 90 [--resources]

Prints one JSON list: kernel, geometry, dtype, shared memory, whether tensor cores are used; with --resources registers and
stack (spills) of the machine code, from cuobjdump of Triton's own package.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from core.model_spec import SMOLLM2_135M, ModelSpec
from core.runtime.backend import KVCache, StepBatch
from core.runtime.gpu import triton_attention, triton_fused
from core.runtime.gpu.inputs import StepInputs, split_step
from core.runtime.gpu.triton_ops import TritonOps
from core.runtime.synthetic import SyntheticSource

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
SMALL = {"num_layers": 1, "vocab_size": 256, "hidden_size": 512, "intermediate_size": 1024}
SPECS = {
    "SmolLM2-135M": dataclasses.replace(SMOLLM2_135M, num_layers=1, vocab_size=256),
    "head 128, group 4, window, norms": dataclasses.replace(
        SMOLLM2_135M, num_heads=8, num_kv_heads=2, head_dim=128, sliding_window=4096, qk_norm=True, **SMALL
    ),
    "head 256": dataclasses.replace(SMOLLM2_135M, num_heads=4, num_kv_heads=2, head_dim=256, **SMALL),
}
LAUNCHES: list[tuple[object, tuple[object, ...], dict[str, object]]] = []


def _record(self: object, *args: object, grid: object, warmup: bool, **options: object) -> None:
    LAUNCHES.append((self, args, options))


def launches(spec: ModelSpec, dtype: torch.dtype) -> None:
    """Walk through all launches of a mixed step and of a rectangle; the recorder takes the place of the driver."""
    weights = SyntheticSource(spec, 0).weights(dtype, torch.device("cpu"), 64)
    ops = TritonOps(spec, weights)
    shape = (1, 9, spec.num_kv_heads, 16, spec.head_dim)
    ops.bind_cache(KVCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)))
    flat = np.zeros(5, np.int32)
    starts, tables = np.array([0, 1, 5], np.int32), np.zeros((2, 4), np.int32)
    query = torch.zeros((5, spec.num_heads, spec.head_dim), dtype=dtype)
    for padded in (False, True):
        batch = StepBatch(flat, flat, flat.astype(np.int64), flat, starts, starts[1:], tables, flat[:2].astype(np.int64), padded)
        split = split_step(batch, ops.queries_a_tile)
        inputs = StepInputs(torch.device("cpu"), 8, 4, 4, 8)
        ops.attention(query, 0, inputs, len(split.decode_rows), len(split.tile_rows), padded)
    ops.rope_and_write(torch.zeros((5, spec.q_size + 2 * spec.kv_size), dtype=dtype), 0, inputs)
    hidden = torch.zeros((5, spec.hidden_size), dtype=dtype)
    ops.norm(hidden, hidden, weights.final_norm)
    ops.norm(hidden, None, weights.final_norm)
    ops.silu_mul(torch.zeros((5, 2 * spec.intermediate_size), dtype=dtype))


def compiled(kernel: object, args: tuple[object, ...], options: dict[str, object], capability: int) -> object:
    """Compile one launch as the driver would for pointers that are multiples of 16 bytes."""
    names = kernel.arg_names  # type: ignore[attr-defined]
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(names):
        if name in options:
            signature[name], constants[name] = "constexpr", options[name]
            continue
        value = args[place]
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    launch = {k: v for k, v in options.items() if k.startswith("num_")}
    return triton.compile(ASTSource(kernel, signature, constants, attributes), GPUTarget("cuda", capability, 32), launch)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and stack bytes of a kernel's machine code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name.lower(): int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK")}  # type: ignore[index]


def main(capability: int, with_resources: bool) -> None:
    """Compile and print."""
    for module in (triton_attention, triton_fused):
        for kernel in vars(module).values():
            if hasattr(kernel, "arg_names"):
                type(kernel).run = _record
    rows = []
    for geometry, spec in SPECS.items():
        for dtype in (torch.bfloat16, torch.float32):
            LAUNCHES.clear()
            launches(spec, dtype)
            for kernel, args, options in LAUNCHES:
                made = compiled(kernel, args, options, capability)
                row = {
                    "kernel": kernel.__name__, "geometry": geometry, "dtype": TYPES[dtype],  # type: ignore[attr-defined]
                    "shared_bytes": made.metadata.shared, "tensor_cores": "mma" in made.asm["ptx"],  # type: ignore[attr-defined]
                }  # fmt: skip
                rows.append(row | (resources(made.asm["cubin"]) if with_resources else {}))  # type: ignore[attr-defined]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), "--resources" in sys.argv)
