"""DATA/migration.json: the data is being migrated, or was. While it stands, `unbounded up` does not start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from unbounded.api.failures import Rejected
from unbounded.kube.durable import remove_durably, write_durably

FILE: Final = "migration.json"


class Stage(StrEnum):
    MOVING = "Moving"
    MOVED = "Moved"


class Marker(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    Args:
        migration: its name, as both sides know it.
        stage: Moved from the hand-over on, which is never taken back.
        server: URL of the target, for people.
        cluster: UID of the target's namespace kube-system, which tells clusters apart.
        paused: how all operations were paused here before; None where they were not.
    """

    migration: str
    server: str
    cluster: str
    stage: Stage = Stage.MOVING
    paused: str | None = None


@dataclass(frozen=True)
class MarkerFile:
    """The marker of one data folder."""

    data: Path

    @property
    def path(self) -> Path:
        return self.data / FILE

    def read(self) -> Marker | None:
        """Return the marker; None for data that was never migrated.

        Raises:
            Rejected: it cannot be read, so nothing is known of the data.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Marker)
        except (FileNotFoundError, NotADirectoryError):  # what the latter means for the data, its server says
            return None
        except OSError as error:
            raise Rejected(f"{self.path}: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise Rejected(f"{self.path}: {error}") from error

    def write(self, marker: Marker) -> None:
        """Raises Rejected: the disk refuses it."""
        try:
            write_durably(self.path, msgspec.json.format(msgspec.json.encode(marker), indent=2) + b"\n")
        except OSError as error:
            raise Rejected(f"{self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        if self.path.exists():
            remove_durably(self.path)


def migrated_words(data: Path) -> str:
    """Return why no control plane runs on the data; empty where one may.

    Raises:
        Rejected: as MarkerFile.read.
    """
    marker = MarkerFile(data).read()
    if marker is None:
        return ""
    if marker.stage is Stage.MOVED:
        return (
            f"it was migrated to {marker.server}, and its machines are looked after there;"
            " `unbounded migrate --to KUBECONFIG` serves agents that have not followed yet"
        )
    return (
        f"a migration to {marker.server} is under way: `unbounded migrate --to KUBECONFIG` finishes it,"
        " and with --take-back everything stays here"
    )
