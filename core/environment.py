"""What a run ran on: system, processor, memory, Python and the packages that decide about speed. No names of people or hosts."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from core.version import VERSION

PACKAGES = ("torch", "numpy", "numba", "tokenizers", "safetensors", "streamlit", "altair", "pyarrow", "vl-convert-python")


def utc_now() -> str:
    """The date and time, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=1)
def processor() -> str:
    """Name of this machine's processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def environment() -> dict[str, Any]:
    """The machine and the software as plain data."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {name: _version_of(name) for name in PACKAGES}
    return {
        "batchscope": VERSION,
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "architecture": platform.machine(),
        "cores": usable or 1,
        "memory_bytes": int(psutil.virtual_memory().total),
        "python": platform.python_version(),
        "packages": {name: version for name, version in versions.items() if version},
    }
