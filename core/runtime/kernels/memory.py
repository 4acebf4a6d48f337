"""Addresses, atomics and waiting: what jitted code needs to read a step's description and to keep threads together.

All jitted code here works on plain addresses (int64): one signature serves every model, and the compiled machine
code in Numba's cache fits them all.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir

from core.runtime.kernels.emit import FLOAT, I32, I64, VOID, Emitter, inline

_MACHINE = platform.machine().lower()
FUTEX = sys.platform.startswith("linux") and _MACHINE in ("x86_64", "aarch64")
"""True where a thread can sleep on an address (futex); elsewhere helpers wait in Python between steps."""

_FUTEX_CALL = 202 if _MACHINE == "x86_64" else 98
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _load(kind: Any, align: int) -> Any:
    def body(e: Emitter, address: Any) -> Any:
        value = e.load(address, kind, align)
        return e.b.sext(value, I64) if kind is I32 else value

    return body


def _word(e: Emitter, base: Any, index: Any) -> Any:
    """Word `index` of an array of int64."""
    return e.load(e.add(base, e.mul(index, 8)), I64, 8)


def _store_f32(e: Emitter, address: Any, value: Any) -> None:
    e.store(value, address)


def _store_i64(e: Emitter, address: Any, value: Any) -> None:
    e.store(value, address, 8)


def _fetch_add(e: Emitter, address: Any, amount: Any) -> Any:
    return e.b.atomic_rmw("add", e.at(address, I64), amount, "seq_cst")


def _load_acquire(e: Emitter, address: Any) -> Any:
    return e.b.load_atomic(e.at(address, I64), ordering="acquire", align=8)


def _store_release(e: Emitter, address: Any, value: Any) -> None:
    e.b.store_atomic(value, e.at(address, I64), ordering="release", align=8)


def _pause(e: Emitter) -> None:
    if _MACHINE in ("x86_64", "amd64"):
        e.call("llvm.x86.sse2.pause", VOID)
    else:
        e.call("llvm.aarch64.hint", VOID, ir.Constant(I32, 1))


def _yield_cpu(e: Emitter) -> Any:
    if sys.platform == "win32":
        return e.b.sext(e.call("SwitchToThread", I32), I64)
    return e.b.sext(e.call("sched_yield", I32), I64)


def _futex_wait(e: Emitter, address: Any, seen: Any) -> Any:
    """Sleep while the low 32 bits at `address` equal those of `seen`."""
    zero = e.const(0)
    return e.call("syscall", I64, e.const(_FUTEX_CALL), address, e.const(_WAIT_PRIVATE), seen, zero, zero, zero)


def _futex_wake(e: Emitter, address: Any, count: Any) -> Any:
    zero = e.const(0)
    return e.call("syscall", I64, e.const(_FUTEX_CALL), address, e.const(_WAKE_PRIVATE), count, zero, zero, zero)


def _call_step(e: Emitter, function: Any, description: Any, thread: Any) -> None:
    kind = ir.FunctionType(VOID, [I64, I64]).as_pointer()
    e.b.call(e.b.inttoptr(function, kind), [description, thread])


load_i64 = inline("load_i64", "a", "a", _load(I64, 8))
load_i32 = inline("load_i32", "a", "a", _load(I32, 4))
load_f32 = inline("load_f32", "a", "f", _load(FLOAT, 4))
word = inline("word", "aa", "a", _word)
store_i64 = inline("store_i64", "aa", "v", _store_i64)
store_f32 = inline("store_f32", "af", "v", _store_f32)
fetch_add = inline("fetch_add", "aa", "a", _fetch_add)
load_acquire = inline("load_acquire", "a", "a", _load_acquire)
store_release = inline("store_release", "aa", "v", _store_release)
pause = inline("pause", "", "v", _pause)
yield_cpu = inline("yield_cpu", "", "a", _yield_cpu)
futex_wait = inline("futex_wait", "aa", "a", _futex_wait)
futex_wake = inline("futex_wake", "aa", "a", _futex_wake)
call_step = inline("call_step", "aaa", "v", _call_step)
