"""The error tree: every failure that a caller can act on has a class of its own.

Each message says what was found and what to do about it. `BatchscopeError` is the root, so one
`except` clause at an outer wall (a page, an HTTP route, a command line) is enough.

    BatchscopeError
    |-- ConfigError          a knob, a model geometry or a device that makes no sense
    |-- RequestRefused       a request that can never run; carries the id and a machine-readable reason
    |-- UnknownRequest       an id that the engine does not hold
    |-- CheckpointError      weights or tokenizer that cannot be read or are not supported
    |-- ExecutorError        the forward pass failed
    |   `-- WorkerDied       the worker process is gone; its requests will be recomputed
    |-- TraceError           a workload file without a usable row
    |-- BundleError          a run bundle that cannot be read: damaged, incomplete, or of a newer version
    |-- ExportError          a file that cannot be written; nothing is left under its name
    |-- ControlRefused       a command from someone who may not give it, or above a limit
    `-- InvariantError       a conservation law is broken: a defect of this program, never of the input
"""

from __future__ import annotations

from enum import StrEnum


class BatchscopeError(Exception):
    """Root of every error raised on purpose by this package."""


class ConfigError(BatchscopeError, ValueError):
    """A setting that makes no sense; the message names the knob, the value found and the valid range."""


class RefusalReason(StrEnum):
    """Why a request was refused at submission."""

    EMPTY_PROMPT = "empty_prompt"
    PROMPT_TOO_LONG = "prompt_too_long"
    POOL_TOO_SMALL = "pool_too_small"
    BUDGET_TOO_SMALL = "budget_too_small"
    BAD_SAMPLING = "bad_sampling"
    BAD_TOKEN = "bad_token"
    BAD_FIELD = "bad_field"
    DUPLICATE_ID = "duplicate_id"
    QUEUE_FULL = "queue_full"
    QUOTA = "quota"


class RequestRefused(BatchscopeError, ValueError):
    """A request that will not be accepted.

    Attributes:
        request_id: the id that the caller gave, or an empty string if there was none.
        reason: the machine-readable cause.
    """

    def __init__(self, request_id: str, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.reason = reason


class UnknownRequest(BatchscopeError, LookupError):
    """An id that the engine does not hold (never submitted, or already forgotten)."""


class CheckpointError(BatchscopeError):
    """Weights, configuration or tokenizer that cannot be read or are not supported."""


class ExecutorError(BatchscopeError):
    """The forward pass failed."""


class WorkerDied(ExecutorError):
    """The worker process ended without being asked to."""


class TraceError(BatchscopeError, ValueError):
    """A workload file that cannot be used; the message counts the broken rows by reason."""


class BundleError(BatchscopeError, ValueError):
    """A run bundle that cannot be read; the message names the part that is damaged or missing."""


class ExportError(BatchscopeError):
    """A file that cannot be written; what stood under its name before is untouched."""


class ControlRefused(BatchscopeError):
    """A command that this caller may not give, or that is above a stated limit.

    Attributes:
        is_temporary: the same command may pass a moment later (a full queue, an engine that starts).
    """

    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class InvariantError(BatchscopeError, AssertionError):
    """A conservation law does not hold."""
