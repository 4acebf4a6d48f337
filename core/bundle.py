"""A run bundle: everything that others need to repeat a run and to look at it, in one zip file.

    manifest.json      what this is, of which version, the size and digest of every other file
    config.json        model, knobs, cache, seed, executor, ceilings of the machine
    environment.json   machine and packages             scenario.toml   what was asked for, if a scenario was
    record.jsonl       commands, decisions and answers: a replay decides again and compares (`core.replay`)
    arrivals.parquet   steps.parquet   requests.parquet   events.parquet

Written under another name and renamed, so a bundle that is there is whole. Two equal runs give equal bytes but for the date.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from core.atomic_file import atomic_file
from core.bundle_tables import arrivals_table, events_table, from_table, parquet_bytes, read_parquet, to_table
from core.environment import environment, utc_now
from core.errors import BatchscopeError, BundleError
from core.plain_data import from_plain, to_plain
from core.records import RequestRecord, StepRecord
from core.run_record import RunRecord
from core.snapshot import RooflineCeilings
from core.version import VERSION

FORMAT = "batchscope run bundle"
FORMAT_VERSION = 1
SUFFIX = ".bundle.zip"
MAX_BYTES = 2 * 2**30
"""A bundle that unpacks to more is refused, so that a small file cannot fill the memory."""

_DATE = (1980, 1, 1, 0, 0, 0)
_NEEDED = ("config.json", "environment.json", "record.jsonl", "steps.parquet", "requests.parquet")
_README = """A run of batchscope. To repeat it and hear whether the schedule came out identical:
    python -m core.run --bundle THIS_FILE
To make its report (HTML and PDF), figures and a Perfetto trace:
    python -m core.report THIS_FILE
Tables are Parquet; record.jsonl has one command or step a line.
"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        kind: "measured" or "predicted", as its steps say.
        complete: False if the run was stopped before its end, or its beginning alone was kept; `note` says why.
        load: the load in one line.
    """

    name: str
    kind: str
    created: str
    load: str
    seed: int
    steps: int
    requests: int
    complete: bool = True
    note: str = ""
    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    program_version: str = VERSION


@dataclass(frozen=True, slots=True)
class RunBundle:
    """A bundle in memory; `steps` oldest first, `requests` in the order of their ends."""

    manifest: Manifest
    record: RunRecord
    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]
    environment: dict[str, Any]
    ceilings: RooflineCeilings | None = None
    scenario: str = ""


def make_bundle(
    record: RunRecord,
    steps: tuple[StepRecord, ...],
    requests: tuple[RequestRecord, ...],
    *,
    name: str,
    load: str,
    seed: int,
    ceilings: RooflineCeilings | None = None,
    scenario: str = "",
    complete: bool = True,
    note: str = "",
    created: str | None = None,
) -> RunBundle:
    """Put a bundle together on the machine on which the run was made.

    Args:
        requests: ended requests, oldest end first.
        created: date and time; None is now.
    """
    if record.truncated:
        complete, note = False, note or "only the beginning of the run was recorded"
    kind = steps[-1].kind if steps else record.header.info.kind
    manifest = Manifest(
        name, kind, utc_now() if created is None else created, load, seed, len(steps), len(requests), complete, note
    )
    return RunBundle(manifest, record, steps, requests, environment(), ceilings, scenario)


def renamed(bundle: RunBundle, name: str) -> RunBundle:
    """The same bundle under another name."""
    return replace(bundle, manifest=replace(bundle.manifest, name=name))


# -- out -----------------------------------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    return (json.dumps(to_plain(value), indent=1, sort_keys=True) + "\n").encode()


def _files(bundle: RunBundle) -> dict[str, bytes]:
    header = bundle.record.header
    config = {
        "seed": bundle.manifest.seed,
        "engine": header.config,
        "executor": header.info,
        "max_model_len": header.max_model_len,
        "eos_token_ids": header.eos_token_ids,
        "ceilings": bundle.ceilings,
    }
    files = {
        "README.txt": _README.encode(),
        "config.json": _json(config),
        "environment.json": _json(bundle.environment),
        "record.jsonl": "".join(f"{line}\n" for line in bundle.record.lines()).encode(),
        "arrivals.parquet": parquet_bytes(arrivals_table(bundle.record)),
        "steps.parquet": parquet_bytes(to_table(StepRecord, bundle.steps)),
        "requests.parquet": parquet_bytes(to_table(RequestRecord, bundle.requests)),
        "events.parquet": parquet_bytes(events_table(bundle.record, bundle.requests)),
    }
    if bundle.scenario:
        files["scenario.toml"] = bundle.scenario.encode()
    return files


def bundle_bytes(bundle: RunBundle) -> bytes:
    """The zip file."""
    files = _files(bundle)
    listed = {name: {"bytes": len(content), "sha256": sha256(content).hexdigest()} for name, content in files.items()}
    manifest = _json({**to_plain(bundle.manifest), "files": listed})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in {"manifest.json": manifest, **files}.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return out.getvalue()


def write_bundle(bundle: RunBundle, target: Path) -> Path:
    """Write a bundle whole or not at all (ExportError if it cannot be written); returns its path."""
    content = bundle_bytes(bundle)
    with atomic_file(target) as file:
        file.write(content)
    return target


# -- in ------------------------------------------------------------------------------------------------------


def _manifest(archive: zipfile.ZipFile, name: str) -> tuple[Manifest, dict[str, Any]]:
    try:
        content = json.loads(archive.read("manifest.json"))
    except KeyError:
        raise BundleError(f"{name} is a zip file but no run bundle: it has no manifest.json") from None
    except ValueError as error:
        raise BundleError(f"the manifest of {name} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(f"{name} is a zip file but no run bundle: its manifest is of another kind")
    version = content.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        made_by = content.get("program_version", "a newer version")
        raise BundleError(
            f"{name} has bundle format {version!r}, written by batchscope {made_by}; this version ({VERSION}) reads up to"
            f" {FORMAT_VERSION}: update it to open the bundle"
        )
    files = content.pop("files", {})
    try:
        return from_plain(Manifest, content), files
    except BatchscopeError as error:
        raise BundleError(f"the manifest of {name} is damaged: {error}") from error


def _read_files(archive: zipfile.ZipFile, listed: dict[str, Any], name: str) -> dict[str, bytes]:
    missing = [n for n in _NEEDED if n not in listed or n not in archive.namelist()]
    if missing:
        raise BundleError(f"{name} is damaged: {missing[0]} is missing")
    total = sum(archive.getinfo(n).file_size for n in listed if n in archive.namelist())
    if total > MAX_BYTES:
        raise BundleError(f"{name} unpacks to {total} bytes, more than the {MAX_BYTES} that are read")
    found = {}
    for part, facts in listed.items():
        content = archive.read(part)
        if len(content) != facts.get("bytes") or sha256(content).hexdigest() != facts.get("sha256"):
            raise BundleError(f"{name} is damaged: {part} is not what was written; get the file again")
        found[part] = content
    return found


def read_bundle(source: Path | bytes, name: str = "") -> RunBundle:
    """Read a bundle from a path or from the bytes of an upload.

    Raises:
        BundleError: if it is damaged, incomplete, of a newer version or no bundle; nothing of it is used then.
    """
    label = name or (source.name if isinstance(source, Path) else "the file")
    try:
        with zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source)) as archive:
            manifest, listed = _manifest(archive, label)
            files = _read_files(archive, listed, label)
    except FileNotFoundError:
        raise BundleError(f"there is no file {label}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise BundleError(f"{label} is damaged or no bundle: {error}") from error
    except OSError as error:
        raise BundleError(f"{label} cannot be read: {error.strerror or error}") from error
    try:
        config = json.loads(files["config.json"])
        ceilings = config.get("ceilings")
        return RunBundle(
            manifest,
            RunRecord.from_lines(files["record.jsonl"].decode().splitlines()),
            from_table(StepRecord, read_parquet(files["steps.parquet"], "steps.parquet"), "steps.parquet"),
            from_table(RequestRecord, read_parquet(files["requests.parquet"], "requests.parquet"), "requests.parquet"),
            json.loads(files["environment.json"]),
            None if ceilings is None else from_plain(RooflineCeilings, ceilings),
            files.get("scenario.toml", b"").decode(),
        )
    except (ValueError, KeyError, TypeError, AttributeError, BatchscopeError) as error:
        raise BundleError(f"{label} cannot be read: {error}") from error
