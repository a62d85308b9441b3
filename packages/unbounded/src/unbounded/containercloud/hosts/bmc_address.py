"""The addresses of BMCs in BareMetalHosts, with the drivers of metal3. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.machine_spec import BootMode
from unbounded.operations.executor_selection import authority_of

_SYSTEMS: Final = "/redfish/v1/Systems/"
_EXAMPLE: Final = "redfish://192.0.2.1/redfish/v1/Systems/1"
_DRIVERS: Final[Mapping[str, BootMode]] = {
    "redfish": BootMode.NETWORK,
    "idrac-redfish": BootMode.NETWORK,
    "ilo5-redfish": BootMode.NETWORK,
    "redfish-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "idrac-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "ilo5-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "redfish-uefihttp": BootMode.UEFI_HTTP,
}
"""Drivers of metal3 that speak Redfish, and how they boot a host."""
_TRANSPORTS: Final[Mapping[str, str]] = {"": "https", "https": "https", "http": "http"}
SERVED: Final = f"{', '.join(_DRIVERS)}, each alone or with +http or +https"


@dataclass(frozen=True)
class BmcAddress:
    """The system behind a BMC, as `spec.pxe` of a Machine names it."""

    url: str
    device_id: str
    boot_mode: BootMode

    def __str__(self) -> str:
        return bmc_key(self.url, self.device_id)


def bmc_key(url: str, device_id: str) -> str:
    """Return the identity of a system, as `bmc_of` has it: the same in any spelling of its BMC's URL."""
    return f"{authority_of(url)} Systems/{device_id}"


def parse_bmc_address(text: str) -> BmcAddress:
    """Parse `spec.bmc.address`.

    Raises:
        ValueError: it is no address, or one of a driver that is not served; the message is for the user.
    """
    driver, found, _ = text.partition("://")
    driver = driver.lower() if found else "ipmi"  # as metal3 takes an address without a scheme
    name, _, transport = driver.partition("+")
    if name not in _DRIVERS or transport not in _TRANSPORTS:
        raise ValueError(f"bmc.address: {driver}:// is not served; served are {SERVED}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"bmc.address: {text} is no URL: {error}") from None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"bmc.address: {text} must have a host, a path and no more, such as {_EXAMPLE}")
    before, found, system = parts.path.rstrip("/").partition(_SYSTEMS)
    if not found or not system or "/" in system:
        raise ValueError(f"bmc.address: {text} names no system; end it with {_SYSTEMS}ID, such as {_EXAMPLE}")
    address = f"[{host}]" if ":" in host else host
    where = f"{address}:{port}" if port is not None else address
    return BmcAddress(f"{_TRANSPORTS[transport]}://{where}{before}", system, _DRIVERS[name])
