"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, by whomever

settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

ROOT = Path(__file__).resolve().parents[1]


TOGETHER = {
    "tests/test_forks.py": "live engine",
    "tests/test_comparison.py": "live engine",
    "tests/test_server_real.py": "live engine",
    "tests/test_server_routes.py": "live engine",
    "tests/faults/test_fault_58_memory_grows.py": "server",
    "tests/faults/test_fault_59_engine_thread_and_session.py": "server",
}
"""Files with engines that keep a core busy: those of one name run one after another, in one worker."""


@cache
def shares(file: str) -> bool:
    """Whether tests of a file share something that is dear to make."""
    return 'scope="module"' in (ROOT / file).read_text("utf-8")


class Together(LoadScopeScheduling):
    """Spreads tests over the workers one by one; those that share a fixture or a name in `TOGETHER` stay in one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return TOGETHER.get(file) or (file if shares(file) else nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Used whatever `--dist` says. The marks of `--dist loadgroup` are without effect with this pytest."""
    return Together(config, log)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of the public trace excerpts, which this project reads but does not ship."""
    folder = ROOT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("the public trace excerpts are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def shared_bench() -> Path:
    """Folder of the recorded metrics pages and of the peers' workload."""
    folder = ROOT.parent / "shared" / "bench"
    if not folder.is_dir():
        pytest.skip("the recorded pages of a peer are not beside this checkout")
    return folder


@pytest.fixture
def live() -> Iterator[Any]:
    """A `FakeLive` of a busy run behind the door of the pages."""
    from pages.parts import engine_access
    from tests.fake_live import FakeLive
    from tests.fake_snapshots import busy_run

    fake = FakeLive(busy_run())
    engine_access.install(fake)
    yield fake
    engine_access.install(None)
