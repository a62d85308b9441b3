"""Replay of a recorded BMC: the profile that `unbounded bmc certify --profile FILE` writes.

Reads are answered as the recorded BMC answered them. Sessions, Tasks, power and the boot override are the simulator's
own: a system shows the recorded values until a request changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from unbounded_lab.bmc.faults import BOOT_TARGETS, RESET_TYPES, BmcFaults
from unbounded_lab.bmc.power import HostBootOverride, HostPower, OverrideEnabled, Press, SimulatedHost

FORMAT: Final = "unbounded-bmc-profile/v1"
SYSTEMS: Final = "/redfish/v1/Systems"
RESET: Final = "#ComputerSystem.Reset"
VALUES: Final = "@Redfish.AllowableValues"


class RecordedResource(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to a GET of one path."""

    status: int
    content_type: str = ""
    etag: str = ""
    body: dict[str, Any] | None = None
    garbled: bool = False  # it had a body that was no JSON object

    @property
    def encoded(self) -> bytes:
        if self.body is not None:
            return msgspec.json.encode(self.body)
        return b"{" if self.garbled else b""


class BmcRecording(msgspec.Struct, frozen=True, rename="camel"):
    """Recorded answers by their paths, and the kind of the log-in."""

    format: str
    login: Literal["session", "basic"]
    username: str
    open_root: bool
    resources: dict[str, RecordedResource]

    @property
    def systems(self) -> tuple[str, ...]:
        """Ids of the systems that were read."""
        split = {path: path.rpartition("/") for path, found in self.resources.items() if found.body}
        return tuple(name for parent, _, name in split.values() if parent == SYSTEMS)

    def system(self, name: str) -> Mapping[str, Any]:
        found = self.resources.get(f"{SYSTEMS}/{name}")
        return (found.body if found else None) or {}

    def power(self, name: str) -> HostPower:
        return HostPower.OFF if self.system(name).get("PowerState") == "Off" else HostPower.ON

    def boot(self, name: str) -> HostBootOverride:
        """Return the recorded boot override; none where its values are no values of Redfish."""
        boot = _mapping(self.system(name), "Boot")
        enabled, target, mode = (boot.get(f"BootSourceOverride{part}") for part in ("Enabled", "Target", "Mode"))
        if enabled not in tuple(OverrideEnabled) or not isinstance(target, str):
            return HostBootOverride()
        return HostBootOverride(OverrideEnabled(enabled), target, mode if isinstance(mode, str) else "UEFI")

    def applied_to(self, faults: BmcFaults) -> BmcFaults:
        """Return the faults with those that the recording decides."""
        system = self.system(self.systems[0])
        reset = _mapping(_mapping(system, "Actions"), RESET)
        types = [value for value in self._reset_types(reset) if value in tuple(Press)]
        targets = _mapping(system, "Boot").get(f"BootSourceOverrideTarget{VALUES}")
        return replace(
            faults,
            systems=self.systems,
            session_service=self._session_service(),
            reset_types=tuple(types) or RESET_TYPES,
            boot_targets=tuple(map(str, targets)) if isinstance(targets, list) and targets else BOOT_TARGETS,
            etags=self._etags(),
        )

    def _session_service(self) -> Literal["works", "absent", "refuses"]:
        if self.login == "session":
            return "works"
        return "absent" if self.open_root else "refuses"

    def _reset_types(self, reset: Mapping[str, Any]) -> list[Any]:
        listed, info = reset.get(f"ResetType{VALUES}"), self.resources.get(str(reset.get("@Redfish.ActionInfo")))
        if isinstance(listed, list):
            return listed
        parameters = (info.body or {}).get("Parameters") if info else None
        found = [one.get("AllowableValues") for one in parameters or () if isinstance(one, dict)]
        return next((values for values in found if isinstance(values, list)), [])

    def _etags(self) -> Literal["strong", "weak", "none", "double-quoted"]:
        found = self.resources[f"{SYSTEMS}/{self.systems[0]}"]
        own = (found.body or {}).get("@odata.etag")
        etag = own if isinstance(own, str) else found.etag
        if not etag:
            return "none"
        if found.etag.startswith('""'):
            return "double-quoted"
        return "weak" if etag.startswith("W/") else "strong"


def load_recording(file: Path) -> BmcRecording:
    """Read a profile.

    Raises:
        ValueError: the file cannot be read, or is no profile of this format; says why.
    """
    try:
        recording = msgspec.json.decode(file.read_bytes(), type=BmcRecording)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file} is no profile of `unbounded bmc certify --profile`: {error}") from error
    if recording.format != FORMAT:
        raise ValueError(f"{file} has the format {recording.format!r}; this version reads {FORMAT!r}")
    if not recording.systems:
        raise ValueError(f"{file} has no system")
    return recording


def current_body(recording: BmcRecording, path: str, host: SimulatedHost | None, power: str | None) -> dict[str, Any]:
    """Return a recorded body without its ETag, and with what has changed at its host since the recording.

    Args:
        host: behind the system at this path; None for other resources.
        power: PowerState that its BMC shows now.
    """
    body = {name: value for name, value in (recording.resources[path].body or {}).items() if name != "@odata.etag"}
    if host is None:
        return body
    if host.history and "PowerState" in body:
        body["PowerState"] = power
    if host.boot != recording.boot(path.rpartition("/")[2]):
        changed = {"Enabled": host.boot.enabled.value, "Target": host.boot.target, "Mode": host.boot.mode}
        body["Boot"] = dict(_mapping(body, "Boot")) | {
            f"BootSourceOverride{part}": value for part, value in changed.items()
        }
    return body


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, Mapping) else {}
