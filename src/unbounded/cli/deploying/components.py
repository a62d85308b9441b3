"""ConfigMap unbounded-kube/unbounded-components: controllers that run beside an API server that knows no Deployments.

`unbounded up` writes it, which is one process with all controllers. Where it stands, nothing has to be started. It has
a key for each of them, one for what machina tells hosts, which is a file as a machina of the cluster is told by, and
one for the flags with which `site deploy-pxe` serves booting machines as metalman does here. A provider that is not
served, or whose process is starting, has one, too, which says why.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying.workloads import CONFIG_FILE, config_text
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.port import Api
from unbounded.operations.absences import Absence

NAME: Final = "unbounded-components"
OF_UP: Final = ("machina", "machine-ops-controller", "metalman")
PXE_FILE: Final = "pxe.yaml"
ABSENT: Final = "not-served."  # keys of providers begin with it
STARTING: Final = "starting."  # or with this, where that passes in a moment


async def publish(api: Api, config: Mapping[str, Any], pxe: Mapping[str, str] | None = None) -> None:
    """Say that `unbounded up` runs the controllers; what it says already is not written.

    Args:
        config: what its machina tells hosts; no secrets, as whoever registers hosts reads it. Of an earlier one nothing
            stays.
        pxe: the flags of `site deploy-pxe` with which a metalman elsewhere serves as this one; None where it serves no
            booting machines.
    """
    where = f"unbounded up {version('unbounded')} on {socket.gethostname()}"
    data = dict.fromkeys(OF_UP, where) | {CONFIG_FILE: config_text(config)}
    if pxe is not None:
        data[PXE_FILE] = config_text(pxe)
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
    try:
        await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    except AlreadyExists:  # an equal one is left as it is by the server
        there = await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
        over = {key: None for key in there.data if key.startswith((ABSENT, STARTING, PXE_FILE))}
        await api.patch(CONFIG_MAPS, NAME, {"data": over | data}, namespace=NAMESPACE)


async def publish_absent(api: Api, absent: Mapping[str, Absence | None]) -> None:
    """Publish why providers are not served, by their names; None for those that are, now."""
    data: dict[str, str | None] = {}
    for provider, absence in absent.items():
        trouble, starting = _told(absence)
        data |= {f"{ABSENT}{provider}": trouble, f"{STARTING}{provider}": starting}
    await api.patch(CONFIG_MAPS, NAME, {"data": data}, namespace=NAMESPACE)


def _told(absence: Absence | None) -> tuple[str | None, str | None]:
    if absence is None:
        return None, None
    return (absence.whole, None) if absence.is_trouble else (None, absence.whole)


def absent_in(data: Mapping[str, str]) -> dict[str, Absence]:
    """Return why providers are not served, by their names."""
    return {
        key.removeprefix(prefix): Absence(why, is_trouble=prefix == ABSENT)
        for prefix in (STARTING, ABSENT)
        for key, why in data.items()
        if key.startswith(prefix)
    }


async def running(api: Api) -> Mapping[str, str]:
    """Where each controller runs, by its name; empty where they are Deployments, or nothing is known."""
    try:
        said = (await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)).data
    except NotFound:
        return {}
    return {name: said[name] for name in OF_UP if name in said}
