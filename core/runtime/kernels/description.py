"""The words of a step's description: what the caller writes and the jitted step reads.

One array of int64: counts, sizes and addresses. Strides of activations are in floats, the rest in bytes. A word's
value is its place in the array.
"""

from __future__ import annotations

from enum import IntEnum, auto

COUNTERS_A_LAYER = 5
"""Ticket counters: qkv, attention, output projection, gate and up, down; one more for the head."""

COUNTER_BYTES = 64


class Word(IntEnum):
    """Words of a step."""

    # the run
    THREADS = 0
    CONTROL = auto()
    COUNTERS = auto()
    FUNCTIONS = auto()
    PRODUCT_FUNCTIONS = auto()
    INPUT_BYTES = auto()
    ATTENTION_FUNCTIONS = auto()
    ATTENTION_INPUT_BYTES = auto()
    SCRATCH = auto()
    SCRATCH_BYTES = auto()
    ROOM = auto()
    ROOM_BYTES = auto()
    RESIDUAL_MODE = auto()
    # the model; panel counts and the bytes from panel to panel
    LAYERS = auto()
    LAYER_TABLE = auto()
    HIDDEN = auto()
    HEADS = auto()
    KV_HEADS = auto()
    HEAD_DIM = auto()
    INTERMEDIATE = auto()
    EPSILON_AND_FACTOR = auto()
    WINDOW = auto()
    EMBEDDING = auto()
    EMBEDDING_ROW_BYTES = auto()
    FINAL_NORM = auto()
    COS = auto()
    SIN = auto()
    QKV_PANELS = auto()
    QKV_PANEL_BYTES = auto()
    O_PANELS = auto()
    O_PANEL_BYTES = auto()
    GATE_UP_PAIRS = auto()
    GATE_UP_PANEL_BYTES = auto()
    DOWN_PANELS = auto()
    DOWN_PANEL_BYTES = auto()
    HEAD = auto()
    HEAD_PANELS = auto()
    HEAD_PANEL_BYTES = auto()
    # the cache
    BLOCK_SIZE = auto()
    BLOCK_BYTES = auto()
    HEAD_BYTES = auto()
    ROW_BYTES = auto()
    # the batch; arrays are int32, slot_mapping and logits_indices int64
    TOKENS = auto()
    TOKEN_IDS = auto()
    POSITIONS = auto()
    SLOT_MAPPING = auto()
    BLOCK_TABLES = auto()
    TABLE_BYTES = auto()
    CONTEXT_LENS = auto()
    READ_ALL = auto()
    ITEMS = auto()
    HEADS_A_UNIT = auto()
    ITEM_ROW = auto()
    ITEM_FIRST = auto()
    ITEM_TOKENS = auto()
    LOGITS_COUNT = auto()
    LOGITS_INDICES = auto()
    # activations [tokens, stride], float32; NORMED, ATTENDED and ACTIVATED have INPUT_BYTES a number
    X = auto()
    NORMED = auto()
    QKV = auto()
    QKV_STRIDE = auto()
    ATTENDED = auto()
    ACTIVATED = auto()
    ACTIVATED_STRIDE = auto()
    LOGITS = auto()
    LOGITS_STRIDE = auto()
    # running maxima of the logits, [threads][tokens], see `best_of`
    BEST = auto()
    BEST_THREAD_BYTES = auto()
    VOCAB = auto()


class LayerWord(IntEnum):
    """Words of one layer's entry in the table at LAYER_TABLE; 0 where a layer has no such tensor."""

    INPUT_NORM = 0
    QKV = auto()
    QKV_BIAS = auto()
    Q_NORM = auto()
    K_NORM = auto()
    KEYS = auto()
    VALUES = auto()
    OUTPUT = auto()
    OUTPUT_BIAS = auto()
    POST_NORM = auto()
    GATE_UP = auto()
    DOWN = auto()


STEP_WORDS = len(Word)
LAYER_WORDS = len(LayerWord)
