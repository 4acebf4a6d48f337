"""The form of a what-if: every knob beside the live value, and the what-if that it adds up to.

Keys begin with "w_" and are bound to the address, so a link restores the form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from core.config import OFF, OFF_KNOBS
from core.devices import DEVICES, DeviceSpec, custom_device
from core.errors import BatchscopeError, ConfigError
from core.model_spec import ModelSpec
from core.models_catalog import MODELS, spec_from_config_json
from core.roofline import ATTAINABLE
from core.snapshot import EngineSnapshot
from core.whatif import WhatIf
from core.whatif_base import LiveBase
from pages.parts import frame, whatif_load
from pages.parts.knobs import MEMORY, SCHEDULER
from pages.parts.whatif_keys import PREFIX, field, forget, say
from pages.parts.whatif_knobs import choice, knob_of, number

HERE, CUSTOM, PASTED = "this machine", "custom", "config.json"
WEIGHT_DTYPES = ("bfloat16", "float16", "fp8", "int8", "int4", "float32")
KV_DTYPES = ("bfloat16", "float16", "fp8", "int8", "float32")
_SHOWN = {k.name: k for k in (*SCHEDULER, *MEMORY)}
_SCHEDULER = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "batch_policy",
    "queue_policy",
    "admission_policy",
    "watermark",
    "preemption_mode",
    "victim_policy",
    "lookahead",
)
FIELDS = (
    *_SCHEDULER, "device", "model", "block_size", "num_blocks", "enable_prefix_caching", "eviction_policy", "num_swap_blocks",
    "max_model_len", "rate_per_s", "users", "rate",
)  # fmt: skip
"""Knobs of a what-if whose field has their own name; `rate` stands for recorded loads only."""
PRESETS: dict[str, dict[str, Any]] = {
    "On an H100": {"device": "H100 SXM"},
    "Twice the seats": {"max_num_seqs": 2.0},
    "Half the KV memory": {"num_blocks": 0.5},
    "Fixed batches": {"batch_policy": "fixed"},
    "Whole prompts": {"batch_policy": "whole_prompts"},
    "Llama 3.1 8B on an H100": {"device": "H100 SXM", "model": "Llama 3.1 8B"},
}
"""One-click what-ifs: a value, or a factor (a float) on the live value."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What the form asks for.

    Attributes:
        base, target: None where `problem` says what is wrong.
        changed: (knob, live value, chosen value) in words.
    """

    base: WhatIf | None
    target: WhatIf | None
    changed: tuple[tuple[str, str, str], ...]
    load: whatif_load.ChosenLoad | None
    problem: str = ""


def take_preset(name: str, base: WhatIf) -> None:
    """Set the knobs of a one-click what-if, the others as they are live."""
    forget()
    for knob, value in PRESETS[name].items():
        live = base.knob(knob) if isinstance(value, float) else None
        say(PREFIX + knob, max(round(live * value), 1) if live is not None else value)


# -- groups --------------------------------------------------------------------------------------------------


def _device(base: LiveBase) -> DeviceSpec | None:
    """The chosen device; None is this machine."""
    name = choice("device", "Device", HERE, [HERE, *DEVICES, CUSTOM], "Published dense 16-bit peaks, or figures of your own.")
    if name == HERE:
        st.caption(frame.plain(f"Steps priced by: {base.basis}."))
        return None
    if name == CUSTOM:
        left, right = st.columns(2)
        with left:
            peak = field("w_peak", "Peak, TFLOP/s", 400.0, min_value=0.001)
            memory = field("w_memory", "Memory, GB", 80.0, min_value=0.01)
        with right:
            bandwidth = field("w_bandwidth", "Memory, GB/s", 2000.0, min_value=0.1)
            price = field("w_price", "Price an hour", 0.0, min_value=0.0)
        return custom_device(
            "custom",
            peak_tflops=peak,
            bandwidth_gb_s=bandwidth,
            memory_gb=memory,
            link_gb_s=300,
            host_gb_s=32,
            price_per_hour=price,
        )
    device = DEVICES[name]
    st.caption(frame.plain(f"Source: {device.source}."))
    price = field("w_price", "Price an hour", 0.0, min_value=0.0, help="For the cost.")
    return replace(device, price_per_hour=price)


def _model(live: ModelSpec, live_label: str) -> ModelSpec:
    """The chosen geometry.

    Raises:
        ConfigError: for a config.json that cannot be read, naming the place or the field.
    """
    here = f"{live_label} (live)"
    name = choice("model", "Model", here, [here, *MODELS, PASTED], "Geometry by config.json; only shapes matter, not weights.")
    if name == here:
        return live
    if name != PASTED:
        spec = MODELS[name].spec
        st.caption(frame.plain(f"Source: {spec.source}. {spec.num_parameters / 1e9:.3g} G parameters."))
        return spec
    upload = st.file_uploader("config.json", type="json", key="w_config_file", max_upload_size=1)
    pasted = st.text_area("or paste it", key="w_config_text", height=120, placeholder='{"model_type": "llama", ...}')
    text = upload.getvalue().decode("utf-8", "replace") if upload is not None else pasted
    if not (text or "").strip():
        raise ConfigError("no config.json yet; upload the file of a model, or paste its text")
    spec = spec_from_config_json(text or "", upload.name if upload is not None else "the pasted config.json")
    st.caption(
        frame.plain(f"{spec.num_parameters / 1e9:.4g} G parameters, {spec.kv_bytes_per_token('bfloat16'):,.0f} B of KV a token.")
    )
    return spec


def _hardware(base: LiveBase) -> tuple[DeviceSpec | None, dict[str, Any]]:
    device = _device(base)
    live = base.whatif
    if device is None:
        return None, {}
    left, right = st.columns(2)
    with left:
        weights = choice("weights", "Weights", live.weight_dtype, WEIGHT_DTYPES, "Number format of the weights.")
        group = number("tp", "Tensor parallel", 1, low=1, help_text="Devices that share each layer.")
    with right:
        kv = choice("kv", "KV cache", live.kv_dtype, KV_DTYPES, "Number format of keys and values.")
        share = field(
            "w_share",
            "Memory share",
            0.92,
            min_value=0.05,
            max_value=1.0,
            step=0.01,
            help="gpu_memory_utilization in vLLM, mem_fraction_static in SGLang.",
        )
    host_ms = field(
        "w_host_ms",
        "Host time of a step, ms",
        round(1e3 * base.host_s, 2),
        min_value=0.0,
        step=0.5,
        help="Deciding, preparing and sampling, outside the forward pass. Proposed: what this machine takes for it now.",
    )
    device = replace(device, step_overhead_s=1e-3 * host_ms)
    heads = None if weights not in ("int4", "int8", "fp8") else "bfloat16"
    return device, {
        "weight_dtype": weights,
        "kv_dtype": kv,
        "head_dtype": heads,
        "tensor_parallel": group,
        "gpu_memory_utilization": share,
    }


def _memory(live: WhatIf, here: bool) -> dict[str, Any]:
    size = knob_of(_SHOWN["block_size"], live.block_size)
    found: dict[str, Any] = {"block_size": size}
    if here:
        found["num_blocks"] = knob_of(_SHOWN["num_blocks"], live.num_blocks or 1)
    else:
        blocks = field("w_pool", "KV blocks", 0, min_value=0, step=1024, help="0: as many as the memory holds.")
        found["num_blocks"] = blocks or None
    found["enable_prefix_caching"] = knob_of(_SHOWN["enable_prefix_caching"], live.enable_prefix_caching)
    found["eviction_policy"] = knob_of(_SHOWN["eviction_policy"], live.eviction_policy)
    found["num_swap_blocks"] = knob_of(_SHOWN["num_swap_blocks"], live.num_swap_blocks)
    length = live.max_model_len or live.model.max_model_len
    found["max_model_len"] = number("max_model_len", "max_model_len", length, step=256, low=2, help_text="Prompt and output.")
    return found


def _words(value: Any) -> str:
    return str(value) if isinstance(value, str) else str(getattr(value, "name", value))


def _changes(live: WhatIf, target: WhatIf) -> tuple[tuple[str, str, str], ...]:
    """What is not as it is live."""
    whats = (live, target)
    pairs = [(n, *[OFF if (v := getattr(w.scheduler, n)) is None and n in OFF_KNOBS else v for w in whats]) for n in _SCHEDULER]
    names = (
        "model",
        "device",
        "block_size",
        "num_blocks",
        "enable_prefix_caching",
        "eviction_policy",
        "num_swap_blocks",
        "weight_dtype",
        "kv_dtype",
    )
    pairs += [(n, getattr(live, n), getattr(target, n)) for n in (*names, "tensor_parallel", "max_model_len", "rate")]
    return tuple((n, _words(a), "fills the memory" if b is None else _words(b)) for n, a, b in pairs if _words(a) != _words(b))


def form(base: LiveBase, snapshot: EngineSnapshot, load: Any) -> Choice:
    """Draw the form and add it up; nothing is simulated here."""
    live = base.whatif
    problem = ""
    spec, values, scheduler, chosen = live.model, {}, {}, None
    device: DeviceSpec | None = None
    try:
        with st.expander("Hardware", icon=":material/memory_alt:", expanded=True, key="w_group_hardware"):
            device, values = _hardware(base)
        with st.expander("Model", icon=":material/deployed_code:", key="w_group_model"):
            spec = _model(live.model, snapshot.info.model_label if snapshot.info else live.model.name)
        with st.expander("Load", icon=":material/input:", expanded=True, key="w_group_load"):
            chosen = whatif_load.choose(live, snapshot, load)
        with st.expander("Scheduler", icon=":material/low_priority:", key="w_group_scheduler"):
            scheduler = {n: knob_of(_SHOWN[n], getattr(live.scheduler, n)) for n in _SCHEDULER}
        with st.expander("Memory", icon=":material/memory:", key="w_group_memory"):
            values = values | _memory(live, device is None)
        target = replace(
            chosen.on(live, scaled=True), model=spec, scheduler=replace(live.scheduler, **scheduler), label="", **values
        )
        if device is not None:
            target = replace(target, device=device, coefficients=None, efficiency=ATTAINABLE)
        target.setup()
        return Choice(chosen.on(live, scaled=False), target, _changes(live, target), chosen)
    except BatchscopeError as error:
        problem = str(error)
    return Choice(None, None, (), chosen, problem)
