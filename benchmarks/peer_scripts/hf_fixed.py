"""Runs inside the peer's own environment: Hugging Face generate in fixed, padded batches.

    python hf_fixed.py MODEL_FOLDER WORKLOAD BATCH ALONE_TOKENS [DTYPE]    the last line is JSON

A batch lasts as long as its longest member; only tokens that a request asked for count.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    folder, workload, batch, alone = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dtype = sys.argv[5] if len(sys.argv) > 5 else "bfloat16"
    requests = json.loads(Path(workload).read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(rows: list, tokens: int) -> float:
        width = max(len(r["prompt"]) for r in rows)
        ids = torch.tensor([[0] * (width - len(r["prompt"])) + r["prompt"] for r in rows])
        mask = torch.tensor([[0] * (width - len(r["prompt"])) + [1] * len(r["prompt"]) for r in rows])
        start = time.perf_counter()
        model.generate(ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return time.perf_counter() - start

    with torch.inference_mode():
        generate(requests[:1], 4)
        alone_s = generate(requests[:1], alone)
        batches = [requests[i : i + batch] for i in range(0, len(requests), batch)]
        total_s = sum(generate(rows, max(r["out"] for r in rows)) for rows in batches)
    useful = sum(r["out"] for r in requests)
    print(json.dumps({"batch_tokens_per_s": useful / total_s, "alone_tokens_per_s": alone / alone_s}))


main()
