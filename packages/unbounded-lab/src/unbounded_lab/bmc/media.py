"""The CD drive that a BMC shows its host: its resources, the insertion of an image, and its ejection.

The shell of the BMC fetches the image before the action: an image that cannot be fetched is answered with an error, as
real BMCs do.
"""

from __future__ import annotations

from typing import Final

from unbounded_lab.bmc.device import BmcSystem, Render, SimulatedBmc
from unbounded_lab.bmc.redfish import ROOT, BmcRequest, Body, RedfishProblem, collection, link, resource
from unbounded_lab.http import LabReply

DRIVE: Final = "Cd"
INSERT: Final = "VirtualMedia.InsertMedia"
EJECT: Final = "VirtualMedia.EjectMedia"
MANAGER_MEDIA: Final = f"{ROOT}/Managers/BMC/VirtualMedia"
PARAMETERS: Final = frozenset({"Image", "Inserted", "WriteProtected", "TransferProtocolType", "TransferMethod"})
DEMANDED: Final = frozenset({"Inserted", "WriteProtected"})
NO_CONTENT: Final = LabReply(204)


def media_link(bmc: SimulatedBmc, holder: str, path: str) -> Body:
    """Return the property of a system or manager that leads to its drives; nothing if it has none."""
    return {"VirtualMedia": link(f"{path}/VirtualMedia")} if bmc.faults.media == holder else {}


def _of_system(bmc: SimulatedBmc, ids: tuple[str, ...]) -> tuple[BmcSystem, str] | None:
    found = bmc.system(ids[0]) if bmc.faults.media == "system" else None
    return None if found is None else (found, f"{ROOT}/Systems/{found.name}/VirtualMedia")


def _of_manager(bmc: SimulatedBmc, ids: tuple[str, ...]) -> tuple[BmcSystem, str] | None:
    return (bmc.systems[0], MANAGER_MEDIA) if bmc.faults.media == "manager" and ids[0] == "BMC" else None


def drives(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = _of_system(bmc, ids)
    return None if found is None else collection("VirtualMedia", found[1], "Virtual Media", [DRIVE])


def manager_drives(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = _of_manager(bmc, ids)
    return None if found is None else collection("VirtualMedia", found[1], "Virtual Media", [DRIVE])


def drive(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    return _drive(_of_system(bmc, ids), ids[1], now, bmc.faults.media_shows)


def manager_drive(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    return _drive(_of_manager(bmc, ids), ids[1], now, bmc.faults.media_shows)


def _drive(found: tuple[BmcSystem, str] | None, name: str, now: float, shows: str) -> Body | None:
    if found is None or name != DRIVE:
        return None
    system, path = found
    image = system.image if now >= system.image_shown_at else None
    actions = {f"#{name}": {"target": f"{path}/{DRIVE}/Actions/{name}"} for name in (INSERT, EJECT)}
    return resource(
        "VirtualMedia",
        f"{path}/{DRIVE}",
        "Virtual CD",
        MediaTypes=["CD", "DVD"],
        Image=image if shows == "url" else None,
        ImageName=None if image is None or shows == "nothing" else image.rpartition("/")[2],
        ConnectedVia="NotConnected" if image is None else "URI",
        Inserted=image is not None,
        WriteProtected=True,
        Actions=actions,
    )


def insertion_url(bmc: SimulatedBmc, request: BmcRequest) -> str | None:
    """Return the URL of the image that a request inserts and the BMC has to fetch first; None for other requests."""
    if request.method != "POST" or not request.path.rstrip("/").endswith(f"Actions/{INSERT}"):
        return None
    try:
        image = request.json().get("Image")
    except RedfishProblem:
        return None
    return image if isinstance(image, str) and bmc.faults.media != "absent" else None


def insert(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    found = _of_system(bmc, ids)
    return _insert(bmc, found, ids[1], request, now)


def manager_insert(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    return _insert(bmc, _of_manager(bmc, ids), ids[1], request, now)


def _insert(
    bmc: SimulatedBmc, found: tuple[BmcSystem, str] | None, name: str, request: BmcRequest, now: float
) -> LabReply:
    if found is None or name != DRIVE:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    body, system = request.json(), found[0]
    for unknown in body.keys() - PARAMETERS:
        raise RedfishProblem("ActionParameterNotSupported", unknown, INSERT)
    image = body.get("Image")
    if not isinstance(image, str):
        raise RedfishProblem("ActionParameterMissing", INSERT, "Image")
    if bmc.faults.media_refused == "plain":
        raise RedfishProblem("ActionParameterValueNotInList", image, "Image", INSERT)
    if bmc.faults.media_refused == "without-fields" and DEMANDED - body.keys():
        raise RedfishProblem("ActionParameterMissing", INSERT, min(DEMANDED - body.keys()))
    if system.image is not None:
        raise RedfishProblem("ResourceInStandby")
    if not bmc.fetched.pop(image, True):
        raise RedfishProblem("InternalError")
    system.image, system.image_shown_at = image, now + bmc.faults.media_shown_after_s
    return NO_CONTENT


def eject(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, _now: float) -> LabReply:
    return _eject(bmc, _of_system(bmc, ids), ids[1], request)


def manager_eject(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, _now: float) -> LabReply:
    return _eject(bmc, _of_manager(bmc, ids), ids[1], request)


def _eject(bmc: SimulatedBmc, found: tuple[BmcSystem, str] | None, name: str, request: BmcRequest) -> LabReply:
    if found is None or name != DRIVE:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    if found[0].image is None and bmc.faults.second_ejection == "refused":
        raise RedfishProblem("ActionParameterMissing", EJECT, "Image")
    found[0].image = None
    return NO_CONTENT


RESOURCES_OF_MEDIA: Final[dict[str, Render]] = {
    f"{ROOT}/Systems/*/VirtualMedia": drives,
    f"{ROOT}/Systems/*/VirtualMedia/*": drive,
    f"{ROOT}/Managers/*/VirtualMedia": manager_drives,
    f"{ROOT}/Managers/*/VirtualMedia/*": manager_drive,
}
ACTIONS_OF_MEDIA: Final = {
    f"{ROOT}/Systems/*/VirtualMedia/*/Actions/{INSERT}": insert,
    f"{ROOT}/Systems/*/VirtualMedia/*/Actions/{EJECT}": eject,
    f"{ROOT}/Managers/*/VirtualMedia/*/Actions/{INSERT}": manager_insert,
    f"{ROOT}/Managers/*/VirtualMedia/*/Actions/{EJECT}": manager_eject,
}
