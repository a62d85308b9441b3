"""ConfigMap unbounded-kube/unbounded-components: controllers beside an API server that does not serve Deployments.

`unbounded up`, one process with all controllers, writes it. Where it exists, no controller has to be started. Its keys:

- one for each controller;
- one with machina's settings of hosts, in the form of machina's file on a cluster;
- one with the flags with which `site deploy-pxe` serves booting machines as metalman does here;
- one for each provider that is not served or whose process is starting, with the reason.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.objects import CONFIG_FILE, config_text
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.operations.component_record import ABSENT, COMPONENTS, STARTING
from unbounded.operations.executor_selection import Unavailability

CONTROLLERS: Final = ("machina", "machine-ops-controller", "metalman")
PXE_FILE: Final = "pxe.yaml"


async def publish(api: Api, config: Mapping[str, Any], pxe: Mapping[str, str] | None = None) -> None:
    """Publish that `unbounded up` runs the controllers; writes nothing that is published already.

    Args:
        config: machina's settings of hosts; no secrets, as users who register hosts can read it. It replaces an earlier
            one.
        pxe: the flags of `site deploy-pxe` with which a metalman elsewhere serves as this one; None where it serves no
            booting machines.
    """
    where = f"unbounded up {version('unbounded')} on {socket.gethostname()}"
    data = dict.fromkeys(CONTROLLERS, where) | {CONFIG_FILE: config_text(config)}
    if pxe is not None:
        data[PXE_FILE] = config_text(pxe)
    body = {"metadata": {"name": COMPONENTS, "namespace": NAMESPACE}, "data": data}
    try:
        await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    except AlreadyExists:  # the server does not write an equal one
        existing = await api.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)
        over = {key: None for key in existing.data if key.startswith((ABSENT, STARTING, PXE_FILE))}
        await api.patch(CONFIG_MAPS, COMPONENTS, {"data": over | data}, namespace=NAMESPACE)


async def publish_absent(api: Api, absent: Mapping[str, Unavailability | None]) -> None:
    """Publish why providers are not served, by their names; None for a provider that is served."""
    data: dict[str, str | None] = {}
    for provider, absence in absent.items():
        trouble, starting = _absence_values(absence)
        data |= {f"{ABSENT}{provider}": trouble, f"{STARTING}{provider}": starting}
    await api.patch(CONFIG_MAPS, COMPONENTS, {"data": data}, namespace=NAMESPACE)


def _absence_values(absence: Unavailability | None) -> tuple[str | None, str | None]:
    if absence is None:
        return None, None
    return (absence.whole, None) if absence.is_problem else (None, absence.whole)


async def running(api: Api) -> Mapping[str, str]:
    """Return where each controller runs, by its name; empty where they are Deployments, or nothing is known."""
    try:
        values = (await api.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)).data
    except NotFound:
        return {}
    return {name: values[name] for name in CONTROLLERS if name in values}
