"""CD drives that a BMC offers its host: find one, insert an image by its URL, eject it.

The drive is that of the system, or of the managers of it (Redfish before 2021.1 has it only there). The BMC fetches the
image itself. Each change returns the drive as it is read afterwards: some BMCs accept a change and show it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from unbounded.metalman.redfish.bmc_interface import BmcLimits, Unsupported, clean
from unbounded.metalman.redfish.documents import members
from unbounded.metalman.redfish.quirks import EJECT_BODIES, INSERT_FIELDS, MEDIA_TYPES

INSERT: Final = "#VirtualMedia.InsertMedia"
EJECT: Final = "#VirtualMedia.EjectMedia"
COLLECTION: Final = "VirtualMedia"


@dataclass(frozen=True, slots=True)
class MediaDrive:
    """State of a drive at one time.

    Args:
        path: of the resource.
        image: URL of the image; empty if there is none, or the BMC does not show it.
        name: of the image's file; empty if there is none, or the BMC does not show it.
        inserted: the host has the image.
        insert_path, eject_path: of the actions; empty if the drive is changed by PATCH.
    """

    path: str
    image: str
    inserted: bool
    insert_path: str
    eject_path: str
    name: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.inserted and not self.image


class MediaCalls(Protocol):
    """Calls to the BMC that this module needs; each raises the failures of `bmc_interface`."""

    async def document(self, path: str, what: str) -> Mapping[str, Any]: ...

    async def change(
        self, method: str, path: str, body: Mapping[str, Any] | None, what: str, leave_by: float
    ) -> object: ...


class MediaClient:
    """Virtual media of one BMC account."""

    def __init__(self, calls: MediaCalls, limits: BmcLimits) -> None:
        self._calls = calls
        self._limits = limits
        self._drives: dict[str, str] = {}  # path of the drive, by path of the system

    async def drive(self, system: str) -> MediaDrive:
        """Read the CD drive of a system, given by its path; find it first if necessary.

        Raises:
            Unsupported: the BMC offers none.
        """
        known = self._drives.get(system)
        if known is not None:
            try:
                return _drive(known, await self._read(known))
            except Unsupported:  # moved or gone
                del self._drives[system]
        found = await self._find(system)
        self._drives[system] = found.path
        return found

    async def insert(self, system: str, url: str, leave_by: float) -> MediaDrive:
        """Insert an image, unless the drive has it; return the drive as it is read afterwards.

        An image that is in the drive is ejected first: the caller decides that before.

        Raises:
            Unsupported: the BMC rejects virtual media, or this image.
        """
        drive = await self.drive(system)
        if drive.image == url and drive.inserted:
            return drive
        if not drive.is_empty:
            drive = await self.eject(system, leave_by)
        await self._insert(drive, url, leave_by)
        return await self._settled(system, lambda found: found.inserted)

    async def eject(self, system: str, leave_by: float) -> MediaDrive:
        """Eject the image, if there is one; return the drive as it is read afterwards."""
        drive = await self.drive(system)
        if drive.is_empty:
            return drive
        try:
            await self._eject(drive, leave_by)
        except Unsupported:  # some BMCs reject the second of two ejections: the drive tells
            after = await self.drive(system)
            if after.inserted:
                raise
            return after
        return await self._settled(system, lambda found: not found.inserted)

    async def _insert(self, drive: MediaDrive, url: str, leave_by: float) -> None:
        if not drive.insert_path:
            await self._calls.change("PATCH", drive.path, {"Image": url, "Inserted": True}, "insertion", leave_by)
            return
        bodies = [{"Image": url, **fields} for fields in INSERT_FIELDS]
        await self._first_accepted(drive.insert_path, bodies, "insertion", leave_by)

    async def _eject(self, drive: MediaDrive, leave_by: float) -> None:
        if not drive.eject_path:
            await self._calls.change("PATCH", drive.path, {"Image": None, "Inserted": False}, "ejection", leave_by)
            return
        await self._first_accepted(drive.eject_path, EJECT_BODIES, "ejection", leave_by)

    async def _first_accepted(
        self, path: str, bodies: Sequence[Mapping[str, Any] | None], what: str, leave_by: float
    ) -> None:
        """Call an action with one body after the other until the BMC accepts one.

        Raises:
            Unsupported: none; the message is that of the first.
        """
        refused: Unsupported | None = None
        for body in bodies:
            try:
                await self._calls.change("POST", path, body, what, leave_by)
            except Unsupported as error:
                refused = refused or error
            else:
                return
        raise refused or Unsupported(f"{path}: no {what}")

    async def _settled(self, system: str, is_done: Callable[[MediaDrive], bool]) -> MediaDrive:
        """Read the drive until a change shows, up to the limit of a task."""
        deadline = asyncio.get_running_loop().time() + self._limits.task_s
        pause_s = self._limits.task_poll_s
        drive = await self.drive(system)
        while not is_done(drive) and asyncio.get_running_loop().time() + pause_s <= deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, self._limits.task_poll_max_s)
            drive = await self.drive(system)
        return drive

    async def _read(self, path: str) -> Mapping[str, Any]:
        return await self._calls.document(path, clean(path))

    async def _find(self, system: str) -> MediaDrive:
        document = await self._read(system)
        links = document.get("Links")
        managers = links.get("ManagedBy") if isinstance(links, Mapping) else None
        holders = [document, *[await self._read(path) for path in members({"Members": managers}).values()]]
        for holder in holders:
            path = _path(holder.get(COLLECTION))
            for member in members(await self._read(path)).values() if path else ():
                found = await self._read(member)
                if _reads_cds(found):
                    return _drive(member, found)
        raise Unsupported(f"{system} has no CD drive for virtual media")


def _reads_cds(document: Mapping[str, Any]) -> bool:
    types = document.get("MediaTypes")
    return isinstance(types, list) and any(isinstance(kind, str) and kind.upper() in MEDIA_TYPES for kind in types)


def _drive(path: str, document: Mapping[str, Any]) -> MediaDrive:
    image = document.get("Image")
    actions = document.get("Actions")
    actions = actions if isinstance(actions, Mapping) else {}
    return MediaDrive(
        path=path,
        image=image if isinstance(image, str) else "",
        inserted=document.get("Inserted") is True,
        insert_path=_target(actions.get(INSERT)),
        eject_path=_target(actions.get(EJECT)),
        name=name if isinstance(name := document.get("ImageName"), str) else "",
    )


def _target(action: object) -> str:
    target = action.get("target") if isinstance(action, Mapping) else None
    return target if isinstance(target, str) else ""


def _path(link: object) -> str:
    found = link.get("@odata.id") if isinstance(link, Mapping) else None
    return found if isinstance(found, str) else ""
