"""What a worker process builds: the runner of a configuration, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

from core.clock import WallClock
from core.config import EngineConfig
from core.runtime.loader import create_runner
from core.runtime.model_runner import ModelRunner


def build_runner(config: EngineConfig, progress: Callable[[str], None]) -> ModelRunner:
    """Load the model of a configuration; `progress` gets a line of text with the share that is done.

    Raises:
        CheckpointError, ConfigError: as `core.runtime.loader.create_runner`.
    """

    def tell(text: str, share: float) -> None:
        progress(f"{text}, {share:.0%}" if 0 < share < 1 else text)

    return create_runner(config, WallClock(), progress=tell)
