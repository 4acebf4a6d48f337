"""The dashboard: `streamlit run app.py`. One engine for the process, started and stopped with the server.

Beside the pages the same process answers OpenAI's completion calls and a metrics page (`core.server.routes`);
BATCHSCOPE_API_TOKEN sets a bearer token for them.

start: heavy imports on the main thread -> engine thread starts (the model loads there) -> server listens
stop:  engine and worker end, then the server
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import altair  # noqa: F401  (imported here because pandas and pyarrow must be first imported on the main thread)
import pandas as pd  # noqa: F401
import pyarrow as pa  # noqa: F401
import streamlit as st

from core.attach.watch import close_watch
from core.ending import close_others, end_first
from core.live import get_live, running_engine
from core.server.routes import routes

_log = logging.getLogger("batchscope")


@asynccontextmanager
async def lifespan(_app: st.App) -> AsyncIterator[dict[str, object]]:
    """Start the engine before the first page and end it after the last."""
    live = get_live()
    restore = end_first(_close)  # the server's own handler is in place by now and is called after it
    gc.freeze()
    try:
        yield {"live": live}
    finally:
        restore()
        _close()


def _close() -> None:
    live = running_engine()
    if live is not None:
        live.close()
    close_watch()
    close_others()


def on_script_error(error: Exception) -> bool:
    """Log a page's error with its trace; the browser gets a sentence and no trace."""
    _log.error("a page failed", exc_info=error)
    st.error(f"This page failed: {type(error).__name__}. The engine goes on; the server's log has the details.")
    return True


app = st.App(
    "pages/main.py",
    routes=routes(get_live, token=os.environ.get("BATCHSCOPE_API_TOKEN") or None),
    lifespan=lifespan,
    on_script_error=on_script_error,
)
