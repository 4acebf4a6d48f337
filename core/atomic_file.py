"""Files that are whole or not there: written beside their place under another name, then renamed.

open DIR/.NAME.part -> write -> flush to disk -> rename to DIR/NAME          an error: the part is deleted
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from core.errors import ExportError

_WAY_OUT = {
    errno.ENOSPC: "the disk is full; free some space or write to another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or write to another folder",
    errno.EACCES: "the folder may not be written to; choose another folder",
    errno.EPERM: "the folder may not be written to; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "the folder does not exist; make it first",
    errno.ENOTDIR: "a part of the path is a file and no folder; choose another path",
    errno.EISDIR: "there is a folder of that name; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


def export_error(target: Path, error: OSError) -> ExportError:
    """The error of a file that could not be written, with the way out."""
    why = _WAY_OUT.get(error.errno or 0, error.strerror or str(error))
    return ExportError(f"{target} was not written: {why}")


@contextmanager
def atomic_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write to; it stands under `target` only after the block has ended without an error.

    Raises:
        ExportError: if it cannot be written; nothing new is left under `target` then.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise export_error(target, error) from error
    finally:
        with suppress(OSError):  # after a rename there is none
            part.unlink(missing_ok=True)


def write_bytes(target: Path, content: bytes) -> Path:
    """Write a whole file (errors as `atomic_file`); returns its path."""
    with atomic_file(target) as file:
        file.write(content)
    return target


def make_folder(folder: Path) -> Path:
    """Make a folder with all above it (ExportError if that cannot be); returns it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ExportError(f"{folder} is a file and no folder; choose another name") from None
    except OSError as error:
        raise export_error(folder, error) from error
    return folder
