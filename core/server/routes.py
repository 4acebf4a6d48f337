"""The routes beside the pages: OpenAI's calls, models, health and metrics, behind an optional bearer token.

POST /v1/completions   POST /v1/chat/completions   GET /v1/models   GET /health   GET /metrics
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.server.completions import Completions, ServingEngine, api_error
from core.server.metrics import MetricsEngine, MetricsExporter
from core.server.schemas import ApiError

Handler = Callable[[Request], Awaitable[Response]]


class LiveApi(ServingEngine, MetricsEngine, Protocol):
    """Both sides of the live engine that the routes use."""


def _guarded(handler: Handler, token: str | None) -> Handler:
    """Let only callers with the bearer token pass, where one is set."""

    async def guarded(request: Request) -> Response:
        if token is not None:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                message = "the bearer token is missing or wrong; send Authorization: Bearer <token>"
                return api_error(ApiError(401, message, kind="authentication_error"))
        return await handler(request)

    return guarded


def routes(get_engine: Callable[[], LiveApi], *, token: str | None = None) -> list[Route]:
    """Routes on an engine that is looked up with the first call, so that they can be made before it starts.

    Args:
        get_engine: returns the live engine of this process.
        token: bearer token for all but /health; None lets everybody who reaches the port pass.
    """

    @cache
    def completions() -> Completions:
        return Completions(get_engine())

    @cache
    def exporter() -> MetricsExporter:
        return MetricsExporter(get_engine())

    async def complete(request: Request) -> Response:
        return await completions().completions(request)

    async def chat(request: Request) -> Response:
        return await completions().chat(request)

    async def models(_request: Request) -> Response:
        info = get_engine().latest().info
        data = [] if info is None else [{"id": info.model_label, "object": "model", "created": 0, "owned_by": "batchscope"}]
        return JSONResponse({"object": "list", "data": data})

    async def health(_request: Request) -> Response:
        state = get_engine().latest().state
        return JSONResponse({"state": state}, status_code=200 if state in ("running", "idle", "paused") else 503)

    async def metrics(_request: Request) -> Response:
        text = await run_in_threadpool(exporter().text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [
        Route("/v1/completions", _guarded(complete, token), methods=["POST"]),
        Route("/v1/chat/completions", _guarded(chat, token), methods=["POST"]),
        Route("/v1/models", _guarded(models, token), methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", _guarded(metrics, token), methods=["GET"]),
    ]
