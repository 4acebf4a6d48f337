"""The probe measures ceilings: counts of operations and bytes are exact, results are plausible and positive."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.clock import WallClock
from core.runtime import probe

CPU = torch.device("cpu")


class TickClock:
    """Every reading is half a second later, so that a timed run takes half a second whatever it does."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        self.time_s += 0.5
        return self.time_s

    def on_step_end(self) -> None:
        return None


def test_a_multiply_add_is_two_operations_and_every_byte_counts_once() -> None:
    assert probe.product_flops(16, torch.float32, CPU, TickClock()) == pytest.approx(2 * 16**3 / 0.5)
    assert probe.read_bytes_per_s(4096, CPU, TickClock()) == pytest.approx(4096 / 0.5)
    assert probe.read_bytes_per_s(4096, CPU, TickClock(), passes=3) == pytest.approx(3 * 4096 / 0.5)


def test_the_cache_size_is_the_largest_that_the_system_tells(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "512K", "32M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert probe.last_level_cache_bytes(tmp_path) == 32 * 2**20
    assert probe.last_level_cache_bytes(tmp_path / "missing") == 0


def test_this_machine_has_ceilings() -> None:
    found = probe.measure_ceilings(torch.bfloat16, CPU, "cpu", WallClock())
    assert found.measured
    assert found.peak_flops > 1e9
    assert found.dram_bytes_per_s > 1e8
    assert found.cache_bytes_per_s is None or found.cache_bytes_per_s >= found.dram_bytes_per_s
    assert found.working_set_bytes >= 8 * found.cache_bytes
