"""DATA/migration.json, the marker of migrated data. While it exists, `unbounded up` refuses to start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from unbounded.api.failures import Rejected
from unbounded.kube.durable import remove_durably, write_durably

FILE: Final = "migration.json"


class MarkerStage(StrEnum):
    MOVING = "Moving"
    MOVED = "Moved"


class Marker(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The marker's content.

    Args:
        migration: its name on both sides.
        stage: Moved from the hand-over on, which cannot be undone.
        server: URL of the target, for messages.
        cluster: UID of the target's namespace kube-system, which identifies the cluster.
        paused: the pause of all operations here before; None where they were not paused.
    """

    migration: str
    server: str
    cluster: str
    stage: MarkerStage = MarkerStage.MOVING
    paused: str | None = None


@dataclass(frozen=True)
class MarkerFile:
    """The marker file of one data directory."""

    data: Path

    @property
    def path(self) -> Path:
        return self.data / FILE

    def read(self) -> Marker | None:
        """Return the marker; None for data that was never migrated.

        Raises:
            Rejected: it cannot be read, so that the state of the data is unknown.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Marker)
        except (FileNotFoundError, NotADirectoryError):  # the server reports a data path that is no directory
            return None
        except OSError as error:
            raise Rejected(f"{self.path}: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise Rejected(f"{self.path}: {error}") from error

    def write(self, marker: Marker) -> None:
        """Write the marker. Raises Rejected: the disk refuses it."""
        try:
            write_durably(self.path, msgspec.json.format(msgspec.json.encode(marker), indent=2) + b"\n")
        except OSError as error:
            raise Rejected(f"{self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        if self.path.exists():
            remove_durably(self.path)


def migrated_reason(data: Path) -> str:
    """Return why no control plane may run on the data; empty where one may.

    Raises:
        Rejected: as MarkerFile.read.
    """
    marker = MarkerFile(data).read()
    if marker is None:
        return ""
    if marker.stage is MarkerStage.MOVED:
        return (
            f"it was migrated to {marker.server}, which manages its machines; `unbounded migrate --to "
            "KUBECONFIG` serves agents that have not moved yet"
        )
    return (
        f"a migration to {marker.server} is in progress: `unbounded migrate --to KUBECONFIG` finishes it, "
        "and --take-back reverts it"
    )
