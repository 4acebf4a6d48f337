"""Executors that the worker tests build inside a real worker process."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace

from core.errors import CheckpointError, ConfigError
from core.executor import ExecutorInfo
from core.model_spec import TINY
from core.outputs import ModelRunnerOutput, StepTiming


class FakeExecutor:
    """Answers with a token that depends on the request's position; some step numbers misbehave on purpose."""

    def __init__(self, config):
        self.config = config
        self.num_blocks = config.cache.num_blocks
        self.steps_here = 0

    @property
    def info(self):
        cache = self.config.cache
        kernels = "plain" if self.steps_here < 3 else "compiled"
        return ExecutorInfo(TINY, "fake", "cpu", "float32", 1, 1, 256, cache.block_size, self.num_blocks, kernels=kernels)

    def execute_model(self, out):
        self.steps_here += 1
        if out.step == 666:
            raise RuntimeError("a kernel was unhappy")
        if out.step == 667:
            raise MemoryError
        if out.step == 668:
            os.kill(os.getpid(), signal.SIGKILL)
        if out.step == 669:
            with open(os.environ["BATCHSCOPE_TEST_MARKER"], "w"):  # noqa: PTH123
                pass  # whoever waits for it knows that the step has begun
            time.sleep(60)
        if out.step == 670:
            print("this line must not disturb the messages", flush=True)
        if out.step == 671:
            sys.stderr.write("last cry of the kernel\n")
            sys.stderr.flush()
            os._exit(3)
        tokens = tuple((r, 100 + n) for r, n in zip(out.request_ids, out.num_computed_tokens, strict=True))
        return ModelRunnerOutput(out.step, tokens, StepTiming(forward_s=0.001), graph=f"call {self.steps_here}")

    def prepare_model(self, out):
        if out.step == 668:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps_here += 10

    def resize(self, num_blocks, block_size, num_swap_blocks):
        if num_blocks > 1_000_000:
            self.num_blocks = 0
            raise ConfigError(f"{num_blocks} blocks do not fit into memory")
        if num_blocks == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        self.num_blocks = num_blocks
        cache = replace(self.config.cache, num_blocks=num_blocks, block_size=block_size)
        self.config = replace(self.config, cache=cache)

    def pid_and_signals(self):
        return os.getpid(), signal.getsignal(signal.SIGINT) == signal.SIG_IGN, os.getpgrp()

    def environment(self):
        return sys.path, [n for n in sys.modules if n.split(".")[0] in ("torch", "streamlit")]

    def close(self):
        pass


def build(config, progress):
    progress("reading the fake weights")
    return FakeExecutor(config)


def build_slowly(config, progress):
    for i in range(100):
        progress(f"reading part {i}")
        time.sleep(0.05)
    return FakeExecutor(config)


def build_checkpoint_error(config, progress):
    raise CheckpointError("model.safetensors is cut off after 12 bytes; download it again")


def build_config_error(config, progress):
    raise ConfigError("num_blocks is too large")


def build_crash(config, progress):
    raise KeyError("lm_head.weight")


def build_killed(config, progress):
    os.kill(os.getpid(), signal.SIGKILL)


def build_dies_after_first_load(config, progress):
    """Loads once for each marker file that is not there yet; later loads kill the process."""
    marker = os.environ["BATCHSCOPE_TEST_MARKER"]
    if os.path.exists(marker):  # noqa: PTH110 - the worker's side stays free of imports
        os.kill(os.getpid(), signal.SIGKILL)
    with open(marker, "w"):  # noqa: PTH123
        pass
    return FakeExecutor(config)
