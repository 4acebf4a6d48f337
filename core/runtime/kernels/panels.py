"""All matrices of a model as panels in one form, and the words of a step's description that say where they lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import psutil
import torch
import torch.nn.functional as F

from core.runtime.backend import LayerWeights, LinearWeight, ModelWeights
from core.runtime.kernels.coding import coded_bytes, encode
from core.runtime.kernels.description import LAYER_WORDS, LayerWord, Word
from core.runtime.kernels.pack import PackedWeight, pack, pack_gate_up, padded

MEMORY_SHARE = 1 / 8
"""A coded copy of the weights may take so much of the machine's memory."""

Packer = Callable[[LinearWeight, bool], PackedWeight]
"""Packs a matrix; True for one of gate and up."""


class ModelPanels:
    """The matrices of a model, packed one by one.

    Attributes:
        layers: [num_layers, LAYER_WORDS] int64, addresses; those of keys and values are the caller's to write.
        words: counts, sizes and addresses for the description, the layer table among them.
        packed: each matrix with its panels, in the order of packing.
    """

    def __init__(self, weights: ModelWeights, packer: Packer) -> None:
        self._packer = packer
        self._small: list[torch.Tensor] = []
        self.packed: list[tuple[LinearWeight, PackedWeight]] = []
        self.layers = np.zeros((len(weights.layers), LAYER_WORDS), np.int64)
        self.words: dict[Word, int] = {Word.LAYER_TABLE: self.layers.ctypes.data}
        for entry, layer in zip(self.layers, weights.layers, strict=True):
            self._pack_layer(entry, layer)
        head = self._pack(weights.head)
        self._note(Word.HEAD_PANELS, head)
        self.words[Word.HEAD] = head.address

    @property
    def num_bytes(self) -> int:
        """Bytes of all panels: what a step reads."""
        return sum(packed.panels * packed.panel_bytes for _, packed in self.packed)

    def _pack_layer(self, entry: npt.NDArray[np.int64], layer: LayerWeights) -> None:
        qkv, o, down = self._pack(layer.qkv), self._pack(layer.o), self._pack(layer.down)
        gate_up = self._pack(layer.gate_up, gated=True)
        for word, packed in ((Word.QKV_PANELS, qkv), (Word.O_PANELS, o), (Word.DOWN_PANELS, down)):
            self._note(word, packed)
        self.words[Word.GATE_UP_PAIRS], self.words[Word.GATE_UP_PANEL_BYTES] = gate_up.panels // 2, gate_up.panel_bytes
        for column, address in {
            LayerWord.QKV: qkv.address,
            LayerWord.OUTPUT: o.address,
            LayerWord.GATE_UP: gate_up.address,
            LayerWord.DOWN: down.address,
            LayerWord.INPUT_NORM: self.float32(layer.input_norm),
            LayerWord.POST_NORM: self.float32(layer.post_norm),
            LayerWord.QKV_BIAS: self.float32(layer.qkv.bias),
            LayerWord.OUTPUT_BIAS: self.float32(layer.o.bias),
            LayerWord.Q_NORM: self.float32(layer.q_norm),
            LayerWord.K_NORM: self.float32(layer.k_norm),
        }.items():
            entry[column] = address

    def _note(self, word: Word, packed: PackedWeight) -> None:
        """Number of panels, and in the word after it their size."""
        self.words[word], self.words[Word(word + 1)] = packed.panels, packed.panel_bytes

    def _pack(self, linear: LinearWeight, *, gated: bool = False) -> PackedWeight:
        packed = self._packer(linear, gated)
        self.packed.append((linear, packed))
        return packed

    def float32(self, tensor: torch.Tensor | None) -> int:
        """Address of a small tensor in float32, padded with zeros to whole vectors; 0 for none."""
        if tensor is None:
            return 0
        wide = tensor.to(torch.float32)
        if wide.dim() == 1:
            wide = F.pad(wide, (0, padded(len(wide)) - len(wide)))
        self._small.append(wide.contiguous())
        return self._small[-1].data_ptr()


class _NotCodable(Exception):
    """A panel holds too many different exponents."""


def pack_model(weights: ModelWeights, *, int8: bool) -> ModelPanels:
    """The panels that steps of any size read."""
    return ModelPanels(weights, lambda linear, gated: (pack_gate_up if gated else pack)(linear.weight, int8=int8))


def code_model(weights: ModelWeights, plain: ModelPanels, memory_bytes: float | None = None) -> ModelPanels | None:
    """A coded copy of bfloat16 panels for small steps; None if it would take too much memory or does not exist.

    Args:
        memory_bytes: memory of the machine; None asks the system.
    """
    memory_bytes = psutil.virtual_memory().total if memory_bytes is None else memory_bytes
    if sum(packed.panels * coded_bytes(packed.k) for _, packed in plain.packed) > MEMORY_SHARE * memory_bytes:
        return None
    already = {id(linear): packed for linear, packed in plain.packed}

    def packer(linear: LinearWeight, gated: bool) -> PackedWeight:
        coded = encode(already[id(linear)])
        if coded is None:
            raise _NotCodable
        return coded

    try:
        return ModelPanels(weights, packer)
    except _NotCodable:
        return None
