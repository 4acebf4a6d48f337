"""Runs inside locust: users who ask for completions one after another and time each token as it comes.

    locust -f locust_user.py --headless -u USERS -r USERS --reset-stats --host URL     ends after LOCUST_REQUESTS answers

Its report is report_stats.csv, written at the very end: the file of --csv is written once a second and lacks whatever
ended in the last one. Rows: "TTFT" and "ITL" (means in ms), "answer" (its content size is the number of tokens). Its
clock begins when all users are there (--reset-stats).
Environment: LOCUST_MODEL, LOCUST_REQUESTS, LOCUST_PROMPT_TOKENS, LOCUST_OUTPUT_TOKENS.
"""

import csv
import json
import os
import random
import time
from pathlib import Path

import gevent
from locust import HttpUser, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV

MODEL = os.environ["LOCUST_MODEL"]
REQUESTS = int(os.environ["LOCUST_REQUESTS"])
PROMPT_TOKENS = int(os.environ["LOCUST_PROMPT_TOKENS"])
OUTPUT_TOKENS = int(os.environ["LOCUST_OUTPUT_TOKENS"])


@events.quitting.add_listener
def write_report(environment: Environment, **_: object) -> None:
    with Path("report_stats.csv").open("w", encoding="utf-8", newline="") as file:
        StatsCSV(environment, PERCENTILES_TO_REPORT).requests_csv(csv.writer(file))


class Asker(HttpUser):
    """One user of a closed loop."""

    wait_time = constant(0)
    begun = ended = 0

    def tell(self, name: str, milliseconds: float, size: int = 0) -> None:
        self.environment.events.request.fire(
            request_type="token", name=name, response_time=milliseconds, response_length=size, exception=None, context={}
        )

    @task
    def complete(self) -> None:
        if Asker.begun >= REQUESTS:
            raise StopUser
        Asker.begun += 1
        rng = random.Random(Asker.begun)
        body = {
            "model": MODEL,
            "prompt": [rng.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        start = last = time.perf_counter()
        tokens = 0
        with self.client.post("/v1/completions", json=body, stream=True, catch_response=True, name="POST") as answer:
            for line in answer.iter_lines(chunk_size=1):
                if not line.startswith(b"data: {") or not json.loads(line[6:])["choices"]:
                    continue
                now = time.perf_counter()
                self.tell("ITL" if tokens else "TTFT", 1e3 * (now - last))
                last = now
                tokens += 1
            answer.success()
        self.tell("answer", 1e3 * (time.perf_counter() - start), tokens)
        Asker.ended += 1
        if Asker.ended >= REQUESTS:
            gevent.spawn(self.environment.runner.quit)  # it ends every user, so no user may run it: it would end itself
