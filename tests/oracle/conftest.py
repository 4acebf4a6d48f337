"""Tiny models on one thread: a parallel region costs more than such a product."""

from tests.runtime_driver import one_thread

__all__ = ["one_thread"]
