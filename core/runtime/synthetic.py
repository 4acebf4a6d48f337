"""Seeded weights and a byte tokenizer: a real model of any geometry without a download.

    W ~ N(0, 1 / in_features), embedding ~ N(0, 1 / (4 hidden)), last norm about 6, other norms about 1, biases about 0

Activations then keep their size through the layers, the layers (not the input token) decide the output, and logits
spread by about 3. The text is noise; geometry, memory traffic and timing are those of a trained model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from core.model_spec import ModelSpec
from core.runtime.checkpoint_names import EMBEDDING, FINAL_NORM, Progress, expected_shapes, no_progress
from core.runtime.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    import torch

    from core.runtime.backend import ModelWeights


class SyntheticTensors:
    """A `TensorSource` that draws each tensor from one seeded stream, in layer order."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self._shapes = expected_shapes(spec)
        self._seeds = {name: seed * 1_000_003 + index for index, name in enumerate(self._shapes)}
        self.label = f"synthetic weights of {spec.name}, seed {seed}"

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def get(self, name: str) -> torch.Tensor:
        import torch

        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(self._seeds[name] % 2**63)
        noise = torch.empty(shape).normal_(generator=generator)
        if name.endswith("norm.weight"):
            return noise.mul_(0.1).add_(1.0).mul_(6.0 if name == FINAL_NORM else 1.0)
        if name.endswith(".bias"):
            return noise.mul_(0.1)
        return noise.mul_(shape[-1] ** -0.5 * (0.5 if name == EMBEDDING else 1.0))


class SyntheticSource:
    """A model of a geometry with seeded weights.

    Args:
        spec: geometry; any vocabulary, but text needs at least 256 tokens.
        fallback: "" or why this model stands in for the one asked for.
    """

    def __init__(self, spec: ModelSpec, seed: int, fallback: str = "") -> None:
        self.spec = spec
        self.fallback = fallback
        self.label = f"{spec.name} (seeded random weights)"
        self._seed = seed

    def tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer(self.spec.vocab_size, self.spec.bos_token_id, self.spec.eos_token_ids)

    def weights(
        self, dtype: torch.dtype, device: torch.device, max_model_len: int, progress: Progress = no_progress
    ) -> ModelWeights:
        from core.runtime.weights import pack_weights

        return pack_weights(self.spec, SyntheticTensors(self.spec, self._seed), dtype, device, max_model_len, progress)
