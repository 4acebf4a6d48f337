"""Runs inside the peer's own environment: vLLM's offline engine on a CPU.

python vllm_offline.py MODEL_FOLDER WORKLOAD SEATS ALONE_TOKENS [DTYPE] [all-cores]    the last line is JSON

vLLM chooses its cores itself and keeps one for others; with all-cores it gets every core. Tokens are not turned into
text in either case.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
if "all-cores" in sys.argv:
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # its threads on every core, as the others have
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, workload, seats, alone = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dtype = sys.argv[5] if len(sys.argv) > 5 else "bfloat16"
    requests = json.loads(Path(workload).read_text(encoding="utf-8"))
    llm = LLM(folder, dtype=dtype, max_model_len=2048, max_num_seqs=seats, enable_prefix_caching=False, skip_tokenizer_init=True)
    prompts = [{"prompt_token_ids": r["prompt"]} for r in requests]

    def run(chosen: list, tokens: list) -> float:
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, detokenize=False) for n in tokens]
        start = time.perf_counter()
        outputs = llm.generate(chosen, params)
        return sum(len(o.outputs[0].token_ids) for o in outputs) / (time.perf_counter() - start)

    run(prompts[:4], [8] * 4)
    rates = [run(prompts, [r["out"] for r in requests]) for _ in range(2)]
    print(json.dumps({"batch_tokens_per_s": max(rates), "alone_tokens_per_s": run(prompts[:1], [alone])}))


if __name__ == "__main__":
    main()
