"""LLVM IR by hand where the inner loops live: a few lines of builder code around llvmlite.

    kernel(name, "aaf", "f", body)   ->  an entry of the kernel library and a Numba intrinsic that calls it by address
    inline(name, "a", "a", body)     ->  a Numba intrinsic that is copied into its caller

Numba's own loop vectoriser decides anew for each loop whether it can; these loops are written as vectors of
LANES floats, which LLVM splits into two AVX2 registers or maps to one AVX-512 register (or four NEON ones).
Every lane does the same operations in the same order on all of them, so results do not depend on the width.

Argument codes: a address or integer (int64), f float32; result v is none.

Kernels are called through a table of addresses, so the code that Numba compiles is the same for every element type
and holds no vector code: that keeps the first start short.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
PAIRS, INT8_PAIRS = "pairs", "int8 pairs"
MULTIPLY_PAIRS = (PAIRS, INT8_PAIRS)
"""Elements of the products that multiply bfloat16 by bfloat16, two k at a time; inputs are rounded to bfloat16 first.
The second keeps its weights in int8 and widens them to bfloat16, which holds them exactly."""

FLOAT = ir.FloatType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID = ir.VoidType()
VF = ir.VectorType(FLOAT, LANES)
VI = ir.VectorType(I32, LANES)
HALVES = ir.VectorType(I16, LANES)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


VB = ir.VectorType(BFloat(), 2 * LANES)
VB_HALF = ir.VectorType(BFloat(), LANES)

_NUMBA_TYPES = {"a": types.int64, "f": types.float32}
_LLVM_TYPES = {"a": I64, "f": FLOAT, "v": VOID}


class Emitter:
    """One function under construction."""

    def __init__(self, module: Any, function: Any) -> None:
        self.module = module
        self.function = function
        self.b = ir.IRBuilder(function.append_basic_block("entry"))

    def const(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def vector(self, value: float) -> Any:
        return ir.Constant(VF, [value] * LANES)

    def ints(self, value: int) -> Any:
        return ir.Constant(VI, [value] * LANES)

    def add(self, a: Any, b: Any) -> Any:
        return self.b.add(a, self.const(b) if isinstance(b, int) else b)

    def mul(self, a: Any, b: Any) -> Any:
        return self.b.mul(a, self.const(b) if isinstance(b, int) else b)

    def at(self, address: Any, kind: Any) -> Any:
        return self.b.inttoptr(address, kind.as_pointer())

    def load(self, address: Any, kind: Any = VF, align: int = 4) -> Any:
        return self.b.load(self.at(address, kind), align=align)

    def store(self, value: Any, address: Any, align: int = 4) -> None:
        self.b.store(value, self.at(address, value.type), align=align)

    def prefetch(self, address: Any) -> None:
        """Ask for a cache line into the second level; an address that is not mapped does no harm."""
        pointer = self.b.inttoptr(address, I8.as_pointer())
        read, locality, data = (ir.Constant(I32, v) for v in (0, 2, 1))
        self.call("llvm.prefetch.p0", VOID, pointer, read, locality, data)

    def splat(self, scalar: Any) -> Any:
        """All lanes hold `scalar`."""
        kind = ir.VectorType(scalar.type, LANES)
        lane0 = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(lane0, ir.Constant(kind, ir.Undefined), ir.Constant(VI, [0] * LANES))

    def call(self, name: str, kind: Any, *args: Any) -> Any:
        """Call an LLVM intrinsic or an external function by its full name."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(kind, [a.type for a in args]), name)
        return self.b.call(function, args)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)

    def dot_pairs(self, a: Any, b: Any, c: Any) -> Any:
        """c + a[2i] b[2i] + a[2i + 1] b[2i + 1] for bfloat16 pairs in 32-bit lanes; needs AVX512_BF16."""
        x, y = (self.b.bitcast(v, VB) for v in (a, b))
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", VF, c, x, y)

    def interleave(self, a: Any, b: Any) -> Any:
        """Two rows of LANES 16-bit numbers as 32-bit lanes (a[i], b[i])."""
        order = ir.Constant(ir.VectorType(I32, 2 * LANES), [i // 2 + LANES * (i % 2) for i in range(2 * LANES)])
        return self.b.bitcast(self.b.shuffle_vector(a, b, order), VI)

    def store_input(self, element: str, value: Any, base: Any, index: Any) -> None:
        """Store LANES floats as inputs of a product: bfloat16 for the products of pairs, else as they are."""
        if element in MULTIPLY_PAIRS:
            rounded = self.call("llvm.x86.avx512bf16.cvtneps2bf16.512", VB_HALF, value)
            self.store(rounded, self.add(base, self.mul(index, 2)), align=2)
        else:
            self.store(value, self.add(base, self.mul(index, 4)))

    def select_max(self, a: Any, b: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def reduce(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Fold the lanes pairwise in a fixed tree and return the scalar."""
        width = LANES
        while width > 1:
            width //= 2
            undefined, order = ir.Constant(vector.type, ir.Undefined), ir.VectorType(I32, width)
            low = self.b.shuffle_vector(vector, undefined, ir.Constant(order, list(range(width))))
            high = self.b.shuffle_vector(vector, undefined, ir.Constant(order, list(range(width, 2 * width))))
            vector = combine(low, high)
        return self.b.extract_element(vector, ir.Constant(I32, 0))

    def loop(self, end: Any, step: int, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """for (i = 0; i < end; i += step) carried = body(i, carried); return the last `carried`."""
        before = self.b.block
        head, inside, after = (self.function.append_basic_block(n) for n in ("head", "inside", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(self.const(0), before)
        state = []
        for value in carried:
            phi = self.b.phi(value.type)
            phi.add_incoming(value, before)
            state.append(phi)
        self.b.cbranch(self.b.icmp_signed("<", index, end), inside, after)
        self.b.position_at_end(inside)
        new = body(index, list(state))
        index.add_incoming(self.add(index, step), self.b.block)
        for phi, value in zip(state, new, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return list(state)

    def widen_bf16(self, address: Any, align: int = 2) -> Any:
        """LANES bfloat16 as float32."""
        raw = self.load(address, ir.VectorType(I16, LANES), align)
        return self.b.bitcast(self.b.shl(self.b.zext(raw, VI), self.ints(16)), VF)

    def narrow_bf16(self, vector: Any) -> Any:
        """float32 to the bits of bfloat16, ties to even; a NaN stays one because its quiet bit is set first."""
        b = self.b
        bits = b.bitcast(vector, VI)
        odd = b.and_(b.lshr(bits, self.ints(16)), self.ints(1))
        rounded = b.lshr(b.add(bits, b.add(odd, self.ints(0x7FFF))), self.ints(16))
        quiet = b.or_(b.lshr(bits, self.ints(16)), self.ints(0x40))
        is_nan = b.fcmp_unordered("uno", vector, vector)
        return b.trunc(b.select(is_nan, quiet, rounded), ir.VectorType(I16, LANES))


def inline(name: str, arguments: str, result: str, body: Callable[..., Any]) -> Any:
    """Make a Numba intrinsic whose body is copied into the caller: loads, stores, atomics, waiting."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        full = f"batchscope_{name}"
        function = builder.module.globals.get(full)
        if function is None:
            function = define(builder.module, full, arguments, result, body)
            function.linkage = "internal"
            function.attributes.add("alwaysinline")
        called = builder.call(function, values)
        return context.get_dummy_value() if result == "v" else called

    return _intrinsic(name, arguments, result, codegen)


def define(module: Any, name: str, arguments: str, result: str, body: Callable[..., Any]) -> Any:
    """Emit one function into `module`."""
    kind = ir.FunctionType(_LLVM_TYPES[result], [_LLVM_TYPES[c] for c in arguments])
    function = ir.Function(module, kind, name)
    emitter = Emitter(module, function)
    value = body(emitter, *function.args)
    if result == "v":
        emitter.b.ret_void()
    else:
        emitter.b.ret(value)
    return function


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the kernel library; `body(emitter, element, *values)` emits it for one element type."""

    name: str
    arguments: str
    result: str
    body: Callable[..., Any]


KERNELS: list[Kernel] = []
"""All kernels; a kernel's place is its place in the table of addresses."""


def kernel(name: str, arguments: str, result: str, body: Callable[..., Any]) -> Any:
    """Register a kernel and return the intrinsic that calls it: called(table address, *arguments)."""
    return family(name, arguments, result, [body])


def family(name: str, arguments: str, result: str, bodies: list[Callable[..., Any]]) -> Any:
    """Register kernels of one signature; the intrinsic takes (table address, member, *arguments), member only if several."""
    place, several = len(KERNELS), len(bodies) > 1
    KERNELS.extend(Kernel(f"{name}_{i}" if several else name, arguments, result, body) for i, body in enumerate(bodies))
    pointer = ir.FunctionType(_LLVM_TYPES[result], [_LLVM_TYPES[c] for c in arguments]).as_pointer()

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        entry = builder.add(values[0], ir.Constant(I64, 8 * place))
        if several:
            entry = builder.add(entry, builder.shl(values[1], ir.Constant(I64, 3)))
        function = builder.load(builder.inttoptr(entry, pointer.as_pointer()), align=8)
        called = builder.call(function, values[2 if several else 1 :])
        return context.get_dummy_value() if result == "v" else called

    return _intrinsic(name, ("aa" if several else "a") + arguments, result, codegen)


def _intrinsic(name: str, arguments: str, result: str, codegen: Callable[..., Any]) -> Any:
    returns = types.void if result == "v" else _NUMBA_TYPES[result]
    signature = returns(*(_NUMBA_TYPES[c] for c in arguments))

    def resolve(typing_context: Any, *args: Any) -> Any:
        return signature, codegen

    names = ["typing_context", *(f"a{i}" for i in range(len(arguments)))]
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    resolve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    resolve.__name__ = name
    return intrinsic(resolve)
