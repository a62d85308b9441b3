"""Record of a migration on both sides: a ConfigMap on the target, and a marker in the data of the source.

ConfigMap unbounded-migration-NAME has the phase of a migration, decided in one place for both sides. Each change of the
phase is one write that conflicts with any other. So hand-over and take-back exclude each other, whichever side writes
first, and a crash leaves exactly one of them decided. The record of a hand-over is permanent. The marker is
DATA/migration.json. While it exists, `unbounded up` refuses to start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.failures import Rejected
from unbounded.api.names import CONFIGMAP_MIGRATION, NAMESPACE
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.kube.durable_files import remove_durably, write_durably

_PAUSED: Final = "paused"
FILE: Final = "migration.json"


class MigrationPhase(StrEnum):
    """Phase of a migration. COPYING and COPIED can be taken back. RESUMED is the point of no return."""

    COPYING = "Copying"
    COPIED = "Copied"
    RESUMED = "Resumed"
    TAKING_BACK = "TakingBack"


@dataclass(frozen=True)
class MigrationRecord:
    """The record's content.

    Args:
        source: origin of the data, for messages.
        paused: the pause of all operations on the target from the hand-over on; None for none.
    """

    migration: str
    source: str
    phase: MigrationPhase
    paused: str | None = None
    version: str = ""


def _name(migration: str) -> str:
    return f"{CONFIGMAP_MIGRATION}-{migration}"


async def read_record(api: Api, migration: str) -> MigrationRecord | None:
    """Return the record of a migration; None before its creation and after a take-back.

    Raises:
        Rejected: the ConfigMap is no record.
    """
    try:
        return _of(await api.get(CONFIG_MAPS, _name(migration), namespace=NAMESPACE))
    except NotFound:
        return None


async def open_record(api: Api) -> MigrationRecord | None:
    """Return the record of the one migration that is neither done nor taken back; the Leases exclude a second one."""
    existing = (await api.list(CONFIG_MAPS, namespace=NAMESPACE)).items
    records = (_of(one) for one in existing if one.metadata.name.startswith(_name("")))
    return next((one for one in records if one.phase is not MigrationPhase.RESUMED), None)


async def begin_record(api: Api, record: MigrationRecord) -> MigrationRecord:
    """Create the record, or return the existing one."""
    data = {"migration": record.migration, "source": record.source, "phase": str(record.phase)}
    data |= {} if record.paused is None else {_PAUSED: record.paused}
    body = {"metadata": {"name": _name(record.migration), "namespace": NAMESPACE}, "data": data}
    try:
        return _of(await api.create(CONFIG_MAPS, body, namespace=NAMESPACE))
    except AlreadyExists:
        return _of(await api.get(CONFIG_MAPS, _name(record.migration), namespace=NAMESPACE))


async def advance_record(api: Api, record: MigrationRecord, phase: MigrationPhase) -> MigrationRecord:
    """Write the next phase.

    Raises:
        Stale: the record has changed meanwhile.
    """
    if record.phase is phase:
        return record
    patch = {"metadata": {"resourceVersion": record.version}, "data": {"phase": str(phase)}}
    written = await api.patch(CONFIG_MAPS, _name(record.migration), patch, namespace=NAMESPACE)
    return replace(record, phase=phase, version=written.metadata.resource_version)


async def remove_record(api: Api, record: MigrationRecord) -> None:
    try:
        await api.delete(CONFIG_MAPS, _name(record.migration), namespace=NAMESPACE, resource_version=record.version)
    except NotFound:
        return


def _of(config_map: ConfigMap) -> MigrationRecord:
    data, meta = config_map.data, config_map.metadata
    try:
        phase = MigrationPhase(data.get("phase", ""))
        return MigrationRecord(
            data["migration"], data.get("source", ""), phase, data.get(_PAUSED), meta.resource_version
        )
    except (KeyError, ValueError) as error:
        where = f"ConfigMap {NAMESPACE}/{meta.name}"
        raise Rejected(f"{where} is not a record of a migration: data.{error}") from error


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
