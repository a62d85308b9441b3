"""The MachineConfiguration version of a Machine, read on demand, without a watch."""

from __future__ import annotations

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MachineConfigurationVersion
from unbounded.api.machine import ConfigurationRef
from unbounded.api.names import LABEL_CONFIGURATION
from unbounded.join.node_marks import newest
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api


class NoVersion(Exception):
    """There is no such configuration, or no such version; the text names it."""


async def bound_version(api: Api, ref: ConfigurationRef) -> MachineConfigurationVersion:
    """Return the version with the reference's number, else the newest of the configuration.

    Raises:
        NoVersion
        ApiError: it cannot be read.
    """
    if ref.version is not None:
        name = f"{ref.name}-v{ref.version}"
        try:
            return await api.get(MACHINE_CONFIGURATION_VERSIONS, name)
        except NotFound:
            raise NoVersion(f"MachineConfigurationVersion {name} does not exist") from None
    listing = await api.list(MACHINE_CONFIGURATION_VERSIONS, labels=f"{LABEL_CONFIGURATION}={ref.name}")
    found = newest(listing.items, ref.name)
    if found is None:
        raise NoVersion(f"MachineConfiguration {ref.name} has no version")
    return found
