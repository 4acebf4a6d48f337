"""Drawing on the logits' own device, all rows in one go; the definition is that of `sampler`.

Candidates come from a partial sort (topk); a row whose set may reach past its edge is done again with a full one.
"""

from __future__ import annotations

import torch

from core.request import SamplingParams

CANDIDATES = 256


def draw_rows(logits: torch.Tensor, best: torch.Tensor, params: list[SamplingParams], u: torch.Tensor) -> torch.Tensor:
    """Return one token id a row, [n] int64.

    Args:
        logits: [n, vocab_size] float32.
        best: [n] their maxima.
        params: settings, none greedy.
        u: [n] float64 in [0, 1), the rows' random numbers.
    """
    device, vocab = logits.device, logits.shape[1]
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device)
    weights = ((logits.double() - best.double().unsqueeze(1)) / temperature.unsqueeze(1)).exp()
    top_k = torch.tensor([p.top_k if 0 < p.top_k < vocab else vocab for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    chosen = torch.empty(len(params), dtype=torch.int64, device=device)
    free = (top_k == vocab) & (top_p >= 1.0)
    if bool(free.any()):
        chosen[free] = _invert(weights[free], u[free])
    bound = torch.nonzero(~free).squeeze(1)
    width = min(vocab, max(CANDIDATES, *(p.top_k + 1 for p in params if 0 < p.top_k < vocab), 0))
    while len(bound):
        ids, complete = _restricted(weights[bound], top_k[bound], top_p[bound], u[bound], width)
        chosen[bound[complete]] = ids[complete]
        bound, width = bound[~complete], vocab
    return chosen


def _invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return, for each row, the first place at which the running sum of `weights` [n, m] exceeds u * total."""
    running = weights.cumsum(dim=-1)
    total = running[:, -1:].contiguous()
    place = torch.searchsorted(running, u.unsqueeze(1) * total, right=True)
    last_with_weight = torch.searchsorted(running, total)  # u * total may round up to total
    return torch.minimum(place, last_with_weight).squeeze(1)


def _restricted(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, u: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw under top_k and top_p from the `width` heaviest tokens of each row.

    Returns ids [n] and a bool [n]: False where the set may hold tokens beyond those `width`.
    """
    vocab = weights.shape[1]
    values, ids = weights.topk(width, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, order = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    edge = values.gather(1, top_k.clamp(max=width).unsqueeze(1) - 1)
    limited = (top_k < vocab).unsqueeze(1)
    in_k = torch.where(limited, values >= edge, True)
    kept = torch.where(in_k, values, 0.0)
    total = torch.where(limited.squeeze(1), kept.sum(dim=-1), weights.sum(dim=-1))
    before = kept.cumsum(dim=-1) - kept
    in_p = (before < (top_p * total).unsqueeze(1)) | (top_p >= 1.0).unsqueeze(1)
    in_p[:, 0] = True
    nucleus = torch.where(in_p, kept, 0.0)
    chosen = ids.gather(1, _invert(nucleus, u).unsqueeze(1)).squeeze(1)
    if width == vocab:
        return chosen, torch.ones_like(u, dtype=torch.bool)
    # Complete: the lightest member is heavier than the edge of the partial sort, or nothing beyond the edge weighs anything.
    lightest = torch.where(limited, edge, torch.where(nucleus > 0, values, torch.inf).amin(dim=-1, keepdim=True))
    last = values[:, -1:]
    return chosen, ((lightest > last) | (last == 0)).squeeze(1)
