"""The formats that are known, as data: which columns mean what, in which unit, under which licence.

A format is recognised by its column names alone; order, case, quotes and blanks do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from core.errors import TraceError
from core.traces.text_input import normalise


class TraceFormat(StrEnum):
    """Formats of workload files."""

    AZURE = "azure"
    BURSTGPT = "burstgpt"
    VIDUR = "vidur"
    MOONCAKE = "mooncake"
    GUIDELLM_AIPERF = "guidellm_aiperf"
    VLLM_CUSTOM = "vllm_custom"
    SHAREGPT = "sharegpt"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Which column holds what; None where the file has no such column.

    Attributes:
        time: arrival times; without them the trace holds lengths only.
        prompt_tokens, output_tokens: lengths in tokens.
        prompt, output: texts, where lengths are to be counted from them.
        hash_ids: a list of block ids a row; equal ids share the prefix up to and including that block.
        tenant: whose request it is.
    """

    time: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    prompt: str | None = None
    output: str | None = None
    hash_ids: str | None = None
    tenant: str | None = None

    def normalised(self) -> ColumnMap:
        """The same map with names as the row readers give them."""
        return ColumnMap(*(normalise(v) if v is not None else None for v in self.values()))

    def values(self) -> tuple[str | None, ...]:
        return (
            self.time, self.prompt_tokens, self.output_tokens, self.prompt, self.output, self.hash_ids, self.tenant,
        )  # fmt: skip

    def named(self) -> tuple[str, ...]:
        """The columns that the map asks for."""
        return tuple(v for v in self.values() if v is not None)


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """One known format.

    Attributes:
        required: normalised columns by which it is recognised.
        unit: the unit of time that its documentation states; None where tools disagree.
        zero_output: the reason under which a row without output tokens is counted.
    """

    label: str
    required: frozenset[str]
    columns: ColumnMap
    unit: str | None = None
    attribution: str = ""
    zero_output: str = "no output tokens"


def _info(label: str, columns: ColumnMap, **more: str | None) -> FormatInfo:
    need = frozenset(
        c for c in (columns.time, columns.prompt_tokens, columns.output_tokens, columns.hash_ids, columns.prompt) if c
    )
    return FormatInfo(label, need, columns, **more)  # type: ignore[arg-type]


FORMATS: dict[TraceFormat, FormatInfo] = {
    TraceFormat.AZURE: _info(
        "Azure LLM inference trace",
        ColumnMap(time="timestamp", prompt_tokens="contexttokens", output_tokens="generatedtokens"),
        attribution="Microsoft Azure, CC BY 4.0",
    ),
    TraceFormat.BURSTGPT: _info(
        "BurstGPT",
        ColumnMap(time="timestamp", prompt_tokens="requesttokens", output_tokens="responsetokens", tenant="model"),
        unit="s",
        attribution="BurstGPT, CC BY 4.0",
        zero_output="failed request (0 response tokens)",
    ),
    TraceFormat.VIDUR: _info(
        "Vidur lengths", ColumnMap(prompt_tokens="numprefilltokens", output_tokens="numdecodetokens"), attribution="Vidur, MIT"
    ),
    TraceFormat.MOONCAKE: _info(
        "Mooncake trace",
        ColumnMap(time="timestamp", prompt_tokens="inputlength", output_tokens="outputlength", hash_ids="hashids"),
        unit="ms",
        attribution="Mooncake, Apache 2.0",
    ),
    TraceFormat.GUIDELLM_AIPERF: _info(
        "GuideLLM replay (seconds) or AIPerf (milliseconds)",
        ColumnMap(time="timestamp", prompt_tokens="inputlength", output_tokens="outputlength"),
    ),
    TraceFormat.VLLM_CUSTOM: _info("vLLM custom data set", ColumnMap(prompt="prompt", output_tokens=None)),
    TraceFormat.SHAREGPT: FormatInfo("ShareGPT conversations", frozenset({"conversations"}), ColumnMap()),
    TraceFormat.GENERIC: FormatInfo("columns as named", frozenset(), ColumnMap()),
}

_ALIASES = ColumnMap(
    time="timestamp time arrivaltime arrivals arriveds arrivedat arrival times timems starttime",
    prompt_tokens="prompttokens inputtokens inputlength inputlen promptlen promptlength contexttokens requesttokens"
    " numprefilltokens isl",
    output_tokens="outputtokens outputlength outputlen generatedtokens completiontokens responsetokens numdecodetokens osl",
    prompt="prompt text",
    output="output completion response",
    hash_ids="hashids",
    tenant="tenant user client model",
)


def recognise(columns: set[str]) -> tuple[TraceFormat, ColumnMap, str]:
    """(format, columns, how) from the normalised column names of a file.

    Raises:
        TraceError: if neither a known format nor a column of lengths or prompts is found.
    """
    best: TraceFormat | None = None
    for fmt, info in FORMATS.items():
        if info.required and info.required <= columns and (best is None or len(info.required) > len(FORMATS[best].required)):
            best = fmt
    if best is not None and FORMATS[best].columns.prompt is None:
        return best, FORMATS[best].columns, f"recognised by its columns {', '.join(sorted(FORMATS[best].required))}"
    picked = ColumnMap(*(next((a for a in (text or "").split() if a in columns), None) for text in _ALIASES.values()))
    how = f"columns taken by their names: {', '.join(picked.named())}"
    if picked.prompt_tokens is None and picked.prompt is not None:
        picked = replace(picked, output_tokens=picked.output_tokens or "outputtokens")  # optional, a row may lack it
        return (TraceFormat.VLLM_CUSTOM if picked.time is None else TraceFormat.GENERIC), picked, how
    if picked.prompt_tokens is not None and (picked.output_tokens is not None or picked.prompt is not None):
        return TraceFormat.GENERIC, picked, how
    raise TraceError(
        f"no known trace has the columns {', '.join(sorted(columns)) or '(none)'}; name the columns of time, prompt tokens"
        " and output tokens"
    )
