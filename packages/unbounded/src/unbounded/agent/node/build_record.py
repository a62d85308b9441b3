"""The record of a slot's build: a file with its sha256 in a second one. It is written last and removed first."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.model import BuildRecord, Slot
from unbounded.api.failures import Rejected
from unbounded.kube.durable import remove_durably, write_durably
from unbounded.kube.logs import Log

log = Log("agent")

FORMAT: Final = 1


class _Header(msgspec.Struct):
    format: int = 1


def read_build_record(layout: Layout, slot: Slot) -> BuildRecord | None:
    """Return the record of a slot's build; None where the slot is incomplete.

    Raises:
        Rejected: the file does not match its checksum, has another format, or is from a later agent.
    """
    path = layout.applied(slot)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror}") from error
    _check(path, content)
    try:
        if (given := msgspec.json.decode(content, type=_Header).format) > FORMAT:
            raise Rejected(
                f"{path}: its format is {given}, but this agent supports formats up to {FORMAT}: use a later agent"
            )
        return msgspec.json.decode(content, type=BuildRecord)
    except msgspec.DecodeError as error:
        raise Rejected(f"{path}: {error}") from error


def _check(path: Path, content: bytes) -> None:
    try:
        message = _sidecar(path).read_text().split()
    except FileNotFoundError:  # power was lost between the two writes
        log.warning(
            "checksum of a slot's description is missing; using the description without verification", path=str(path)
        )
        return
    if message[:1] != [hashlib.sha256(content).hexdigest()]:
        raise Rejected(f"{path}: it does not match its checksum; build the slot again, or remove both files")


def write_build_record(layout: Layout, slot: Slot, applied: BuildRecord) -> None:
    """Write the record durably. A loss of power leaves the previous one, this one, or either without its checksum."""
    path = layout.applied(slot)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(applied), indent=2)
    remove_durably(_sidecar(path))
    write_durably(path, content)
    write_durably(_sidecar(path), f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode())


def remove_build_record(layout: Layout, slot: Slot) -> None:
    """Remove the record. From then on the slot is incomplete."""
    if layout.applied(slot).parent.is_dir():
        remove_durably(layout.applied(slot))
        remove_durably(_sidecar(layout.applied(slot)))


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
