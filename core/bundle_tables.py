"""Records as Parquet tables and back; arrivals and events of a run as tables that any tool reads.

dataclass field -> column      int -> int64   float -> double   tuple[float, ...] -> list<double>   None -> null
"""

from __future__ import annotations

import dataclasses
import io
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from core.engine_commands import Cancel, Reset, SetCache, SetPriority, SetScheduler, Submit
from core.errors import BundleError
from core.records import RequestRecord
from core.run_entries import CommandEntry, FailureEntry, StepEntry
from core.run_record import RunRecord

_T = TypeVar("_T")
_PLAIN: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def _arrow_type(hint: Any) -> pa.DataType:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is tuple:
        return pa.list_(_PLAIN[options[0]])
    return _PLAIN[options[0]] if options else _PLAIN[hint]


def schema_of(kind: type) -> pa.Schema:
    """Columns of a flat dataclass."""
    hints = typing.get_type_hints(kind)
    return pa.schema([(f.name, _arrow_type(hints[f.name])) for f in dataclasses.fields(kind)])


def to_table(kind: type, rows: Sequence[Any]) -> pa.Table:
    """One row a record."""
    schema = schema_of(kind)
    return pa.table({name: pa.array([getattr(r, name) for r in rows], schema.field(name).type) for name in schema.names})


def from_table(kind: type[_T], table: pa.Table, name: str) -> tuple[_T, ...]:
    """The records of a table.

    Raises:
        BundleError: for columns that do not fit, naming the file `name`.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table.column_names) - set(fields))
    if unknown:
        raise BundleError(f"{name} has a column {unknown[0]} that this version does not know; read it with a newer version")
    missing = [n for n, f in fields.items() if n not in table.column_names and f.default is dataclasses.MISSING]
    if missing:
        raise BundleError(f"{name} has no column {missing[0]}; the bundle is incomplete")
    columns = {n: table.column(n).to_pylist() for n in table.column_names}
    hints = typing.get_type_hints(kind)
    for n, values in columns.items():
        if typing.get_origin(hints[n]) is tuple:
            columns[n] = [tuple(v) for v in values]
    return tuple(kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def read_parquet(content: bytes, name: str) -> pa.Table:
    """A Parquet file as a table (BundleError if it is none)."""
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowInvalid, OSError) as error:
        raise BundleError(f"{name} is damaged: {error}") from error


# -- what people and other tools want to read ------------------------------------------------------------------


def arrivals_table(record: RunRecord) -> pa.Table:
    """One row for each request that was accepted, in order of submission; prompts as token ids."""
    found = [(e.time_s, e.command) for e in record.entries if isinstance(e, CommandEntry) and isinstance(e.command, Submit)]
    submits = [command for _, command in found]
    arrival_s = [time_s if c.arrival_time_s is None else c.arrival_time_s for time_s, c in found]
    sampling = [c.sampling for c in submits]
    return pa.table(
        {
            "request_id": pa.array([c.request_id for c in submits], pa.string()),
            "arrival_s": pa.array(arrival_s, pa.float64()),
            "tenant": pa.array([c.tenant for c in submits], pa.string()),
            "priority": pa.array([c.priority for c in submits], pa.int64()),
            "source": pa.array([c.source for c in submits], pa.string()),
            "prompt_tokens": pa.array([len(c.prompt_token_ids) for c in submits], pa.int64()),
            "max_tokens": pa.array([s.max_tokens for s in sampling], pa.int64()),
            "temperature": pa.array([s.temperature for s in sampling], pa.float64()),
            "top_p": pa.array([s.top_p for s in sampling], pa.float64()),
            "top_k": pa.array([s.top_k for s in sampling], pa.int64()),
            "seed": pa.array([s.seed for s in sampling], pa.int64()),
            "ignore_eos": pa.array([s.ignore_eos for s in sampling], pa.bool_()),
            "slo_ttft_s": pa.array([c.slo.ttft_s for c in submits], pa.float64()),
            "slo_itl_s": pa.array([c.slo.itl_s for c in submits], pa.float64()),
            "prompt_token_ids": pa.array([c.prompt_token_ids for c in submits], pa.list_(pa.int32())),
        }
    )


_Event = tuple[float, int, str, str, str, int | None]


def _command_event(entry: CommandEntry) -> _Event:
    command = entry.command
    match command:
        case Submit():
            at_s = entry.time_s if command.arrival_time_s is None else command.arrival_time_s
            return (at_s, entry.step, command.request_id, "submitted", f"{len(command.prompt_token_ids)} prompt tokens", None)
        case Cancel(request_id):
            return (entry.time_s, entry.step, request_id, "cancel asked", "", None)
        case SetPriority(request_id, priority):
            return (entry.time_s, entry.step, request_id, "priority", str(priority), None)
        case SetScheduler() | SetCache() | Reset() | _:
            return (entry.time_s, entry.step, "", type(command).__name__, "", None)


def _step_events(entry: StepEntry) -> Iterator[_Event]:
    output, start_s = entry.output, entry.start_s
    for lost in output.preemptions:
        detail = f"for {lost.beneficiary or 'nobody'}: {lost.reason}, {lost.blocks_freed} blocks"
        yield (start_s, output.step, lost.victim, "preempted", detail, None)
    for request_id in output.admitted:
        yield (start_s, output.step, request_id, "admitted", "", None)
    for request_id in output.resumed:
        yield (start_s, output.step, request_id, "resumed", "", None)
    for request_id, token_id in entry.result.sampled:
        yield (entry.answered_s, output.step, request_id, "token", "", token_id)


def events_table(record: RunRecord, requests: Sequence[RequestRecord]) -> pa.Table:
    """What happened, in order of time: commands, admissions, preemptions, tokens, ends, failures."""
    rows: list[_Event] = []
    for entry in record.entries:
        match entry:
            case CommandEntry():
                rows.append(_command_event(entry))
            case StepEntry():
                rows += _step_events(entry)
            case FailureEntry():
                rows.append((entry.failed_s, entry.output.step, "", "step failed", entry.message, None))
    rows += [(r.finished_s, -1, r.request_id, "ended", r.finish_reason, None) for r in requests]
    rows.sort(key=lambda row: row[0])
    columns = list(zip(*rows, strict=True)) or [()] * 6
    types = (pa.float64(), pa.int64(), pa.string(), pa.string(), pa.string(), pa.int64())
    names = ("time_s", "step", "request_id", "kind", "detail", "token_id")
    return pa.table({n: pa.array(list(c), t) for n, c, t in zip(names, columns, types, strict=True)})
