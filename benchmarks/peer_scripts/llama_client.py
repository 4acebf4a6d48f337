"""Drives a llama.cpp server over HTTP with the whole load at once, standard library only.

python llama_client.py URL WORKLOAD ALONE_TOKENS    the last line is JSON
"""

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def complete(url: str, prompt: list, tokens: int) -> int:
    """Ask for `tokens` greedy tokens after token ids; return how many came."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return int(json.load(answer)["tokens_predicted"])


def main() -> None:
    url, workload, alone = sys.argv[1], sys.argv[2], int(sys.argv[3])
    requests = json.loads(Path(workload).read_text(encoding="utf-8"))
    complete(url, requests[0]["prompt"], 4)
    start = time.perf_counter()
    count = complete(url, requests[0]["prompt"], alone)
    alone_rate = count / (time.perf_counter() - start)
    start = time.perf_counter()
    with ThreadPoolExecutor(len(requests)) as pool:
        total = sum(pool.map(lambda r: complete(url, r["prompt"], r["out"]), requests))
    print(json.dumps({"batch_tokens_per_s": total / (time.perf_counter() - start), "alone_tokens_per_s": alone_rate}))


if __name__ == "__main__":
    main()
