"""What int8 weights cost in quality: perplexity of the project's own text, against the unrounded weights.

    python -m benchmarks quality [--text PATH] [--tokens 2048] [--model smollm2] [--dtype bfloat16]

The text is run in pieces of WINDOW tokens, each from an empty context; perplexity = exp(mean negative log-likelihood of
every token but a piece's first). same_choice is the share of positions at which both would pick the same token.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import print_json_line, print_table
from core.model_spec import ModelSpec
from core.runtime.backend import TORCH_DTYPES, KVCache, StepBatch
from core.runtime.kernels.backend import create_backend
from core.runtime.model import DecoderModel
from core.runtime.model_source import ModelSource, open_model

WINDOW, BLOCK_SIZE = 256, 16
ASSETS = Path(__file__).resolve().parents[1] / "assets"


def _model(source: ModelSource, dtype: torch.dtype, weight_dtype: str) -> DecoderModel:
    spec, device = source.spec, torch.device("cpu")
    backend = create_backend(spec, dtype, device, weight_dtype, wait=True)
    if backend is None:
        raise SystemExit(f"the compiled kernels cannot run {spec.name} here, and int8 weights need them")
    model = DecoderModel(spec, source.weights(dtype, device, WINDOW), backend)
    shape = (spec.num_layers, WINDOW // BLOCK_SIZE + 1, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim)
    model.bind_cache(KVCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)))
    return model


def _logits(model: DecoderModel, piece: list[int]) -> torch.Tensor:
    n = len(piece)
    places = np.arange(n)
    batch = StepBatch(
        np.array(piece, np.int32), places.astype(np.int32), places.astype(np.int64), np.zeros(n, np.int32),
        np.array([0, n], np.int32), np.array([n], np.int32), np.arange(WINDOW // BLOCK_SIZE, dtype=np.int32)[None].copy(),
        places.astype(np.int64),
    )  # fmt: skip
    return model.forward(batch).float().clone()


def _token_ids(source: ModelSource, text: str, limit: int, spec: ModelSpec) -> list[int]:
    ids = list(source.tokenizer().encode(text))[:limit]
    if len(ids) < WINDOW // 2:
        raise SystemExit(f"the text has {len(ids)} tokens; give one of at least {WINDOW // 2}")
    return [i for i in ids if i < spec.vocab_size]


def main(argv: list[str]) -> int:
    """Run the text under both weights; print a line each, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--text", type=Path, help="default: the longest *.txt in assets/")
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args(argv)
    texts = sorted(ASSETS.rglob("*.txt"), key=lambda p: p.stat().st_size)
    path = args.text or (texts[-1] if texts else None)
    if path is None:
        raise SystemExit("assets/ holds no text; give one with --text")
    source = open_model(args.model)
    ids = _token_ids(source, path.read_text(encoding="utf-8"), args.tokens, source.spec)
    pieces = [ids[i : i + WINDOW] for i in range(0, len(ids), WINDOW)]
    models = {kind: _model(source, TORCH_DTYPES[args.dtype], kind) for kind in ("same", "int8")}
    losses: dict[str, float] = dict.fromkeys(models, 0.0)
    count = equal = 0
    for piece in (p for p in pieces if len(p) > 1):
        choices = []
        target = torch.tensor(piece[1:])
        for kind, model in models.items():
            logits = _logits(model, piece)[:-1]
            losses[kind] += float(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
            choices.append(logits.argmax(-1))
        equal += int((choices[0] == choices[1]).sum())
        count += len(target)
    perplexity = {kind: math.exp(loss / count) for kind, loss in losses.items()}
    print_table(["weights", "perplexity"], [["as the model" if k == "same" else k, p] for k, p in perplexity.items()])
    print_json_line(
        {
            "benchmark": "quality",
            "perplexity": perplexity["same"],
            "perplexity_int8": perplexity["int8"],
            "ratio": perplexity["int8"] / perplexity["same"],
            "same_choice": equal / count,
            "tokens": count,
            "text": path.name,
            "dtype": args.dtype,
            "model": source.label,
            "device": "cpu",
        }
    )
    for model in models.values():
        model.backend.close()
    return 0
