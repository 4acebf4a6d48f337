"""The dashboard with one more route: GET /records gives every kept request record as JSON, newest first.

Served by `python -m benchmarks clients`, which holds other programs' reports against these records.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from streamlit import App

from app import lifespan, on_script_error
from core.live import get_live
from core.server.routes import routes


async def records(_request: Request) -> JSONResponse:
    """Every kept record and whether requests are still live."""
    live = get_live()
    picture = live.latest()
    busy = picture.num_running + picture.num_waiting + picture.num_preempted
    return JSONResponse({"live": busy, "records": [dataclasses.asdict(r) for r in live.requests()]})


app = App(
    Path(__file__).resolve().parents[1] / "pages" / "main.py",
    routes=[*routes(get_live), Route("/records", records, methods=["GET"])],
    lifespan=lifespan,
    on_script_error=on_script_error,
)
