"""The calls on the real dashboard process: streamlit's server, a live engine, clients that people use."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from benchmarks.dashboard import Served, served
from core.attach.page import ServerPage, parse_page
from tests.live_cases import PATIENCE_S, wait_until

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environment = {"BATCHSCOPE_MODEL": "tiny", "BATCHSCOPE_DTYPE": "float32", "BATCHSCOPE_EXECUTOR": "inprocess"}
    with served(tmp_path_factory.mktemp("served"), BATCHSCOPE_RATE="0", BATCHSCOPE_API_TOKEN=TOKEN, **environment) as found:
        yield found


def page(server: Served) -> ServerPage:
    request = urllib.request.Request(server.url + "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return parse_page(answer.read().decode())


def wait_for_idle(server: Served, limit_s: float = PATIENCE_S) -> ServerPage:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        found = page(server)
        if not found.gauges["running"] and not found.gauges["waiting"]:
            return found
        time.sleep(0.05)
    raise AssertionError(f"requests still live after {limit_s} s: {page(server).gauges}")


def test_the_openai_package_completes_and_streams(server: Served) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        model = client.models.list().data[0].id
        call = {
            "model": model,
            "prompt": "The ridge point",
            "max_tokens": 8,
            "temperature": 0.0,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.completions.create(**call)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 8
        parts = list(client.completions.create(**call, stream=True, stream_options={"include_usage": True}))
        assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
        assert parts[-1].usage is not None
        assert parts[-1].usage.completion_tokens == 8
        with pytest.raises(openai.NotFoundError):
            client.completions.create(**(call | {"model": "gpt-4"}))
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.completions.create(**(call | {"max_tokens": 0}))
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_completes_and_is_refused_in_openais_form(server: Served) -> None:
    def curl(body: str, *more: str) -> tuple[int, dict[str, object]]:
        command = ["curl", "-sS", "-m", "90", "-w", "\n%{http_code}", server.url + "/v1/completions", "-d", body, *more]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text, _, status = out.rpartition("\n")
        return int(status), json.loads(text)

    allowed = ("-H", f"Authorization: Bearer {TOKEN}")
    status, body = curl('{"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": true}', *allowed)
    assert status == 200
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert curl('{"prompt": [5]}')[0] == 401
    assert curl("{nonsense", *allowed)[0] == 400


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request_and_its_blocks_come_back(server: Served, stream: bool) -> None:
    before = wait_for_idle(server)
    prompts = [[5, 6, 7 + k] for k in range(8)]  # 128 answers are seconds of work, whoever is slow to see the client leave
    body = json.dumps({"prompt": prompts, "max_tokens": 480, "n": 16, "ignore_eos": True, "stream": stream})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {TOKEN}"})
    sock = connection.sock
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    else:
        wait_until(lambda: page(server).gauges["running"], what="requests of this call")
    sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    after = wait_for_idle(server)
    assert after.gauges["kv_usage"] == 0.0
    made = after.counters["generation_tokens"] - before.counters["generation_tokens"]
    assert made < 8 * 16 * 480, "cut short, not run to the end"


def test_a_client_that_leaves_before_its_first_token_costs_nothing(server: Served) -> None:
    wait_for_idle(server)
    body = json.dumps({"prompt": [5] * 400, "max_tokens": 100, "ignore_eos": True, "stream": True})
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {TOKEN}"})
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
    assert wait_for_idle(server).gauges["kv_usage"] == 0.0


def test_the_log_holds_no_token(server: Served) -> None:
    assert TOKEN not in Path(server.log).read_text(errors="replace")
