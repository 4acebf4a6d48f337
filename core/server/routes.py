"""The routes beside the pages: OpenAI's calls, models, health and metrics, behind an optional bearer token.

POST /v1/completions   POST /v1/chat/completions   GET /v1/models[/NAME]   GET /health   GET /metrics
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.server.answers import api_error
from core.server.completions import Completions, ServingEngine
from core.server.metrics import MetricsEngine, MetricsExporter
from core.server.schemas import ApiError
from core.snapshot import EngineSnapshot

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


def _length(snapshot: EngineSnapshot) -> int | None:
    """Most tokens of a request: the model's limit, or a smaller one of the configuration."""
    limits = [snapshot.config.max_model_len, snapshot.info.spec.max_model_len if snapshot.info else None]
    return min((v for v in limits if v is not None), default=None)


def _model(name: str, length: int | None) -> dict[str, Any]:
    """A model in OpenAI's form, with vLLM's max_model_len."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "batchscope", "max_model_len": length}


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

    async def models(request: Request) -> Response:
        snapshot = get_engine().latest()
        info = snapshot.info
        data = [] if info is None else [_model(info.model_label, _length(snapshot))]
        asked = request.path_params.get("name")
        if asked is None:
            return JSONResponse({"object": "list", "data": data})
        if not data or asked != data[0]["id"]:
            message = f"the model {asked!r} does not exist here"
            return api_error(ApiError(404, message, param="model", code="model_not_found"))
        return JSONResponse(data[0])

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
        Route("/v1/models/{name:path}", _guarded(models, token), methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", _guarded(metrics, token), methods=["GET"]),
    ]
