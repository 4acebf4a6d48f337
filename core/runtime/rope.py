"""Rotary positions: the table of cosines and sines that turns pair (i, i + d/2) of a head by position * frequency_i.

    frequency_i = theta^(-2 i / d)                                       default
                  ... / factor                                           linear
                  long wavelengths / factor, short ones kept, a ramp between them    llama3

The llama3 formula is that of Llama 3.1's release (rope_scaling in its config.json).
"""

from __future__ import annotations

import math

import torch

from core.model_spec import ModelSpec, RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Return the angle that one position adds to each pair, [head_dim / 2] float32, rad."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    return frequencies


def _llama3(frequencies: torch.Tensor, s: RopeScaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / frequencies
    longest_kept = s.original_max_position_embeddings / s.high_freq_factor
    shortest_scaled = s.original_max_position_embeddings / s.low_freq_factor
    ramp = (s.original_max_position_embeddings / wavelengths - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    blended = (1 - ramp) * frequencies / s.factor + ramp * frequencies
    scaled = torch.where(wavelengths > shortest_scaled, frequencies / s.factor, blended)
    return torch.where(wavelengths < longest_kept, frequencies, scaled)


def rope_table(spec: ModelSpec, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (cos, sin), each [max_model_len, head_dim / 2] float32."""
    positions = torch.arange(max_model_len, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling))
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each head of x [tokens, heads, head_dim] by its token's angles (cos, sin: [tokens, head_dim / 2]); float32 inside."""
    first, second = x.float().chunk(2, dim=-1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)
