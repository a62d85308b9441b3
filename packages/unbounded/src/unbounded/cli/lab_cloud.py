"""The simulated cloud of `unbounded up --lab N --lab-cloud NAME`: its process, and its objects in the control plane.

The cloud starts empty with each run, with the same machines at the same address. Machines persist, and are bound to
the new instances.
"""

from __future__ import annotations

import asyncio
import shlex
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_SITE
from unbounded.cli import child, lab
from unbounded.cli.deploy.site_tokens import tokens_for
from unbounded.cli.servers import UpFailed
from unbounded.kube.api import AlreadyExists, Api

FOLDER: Final = "lab-cloud"  # in the data directory
READY_S: Final = 60.0
TOKEN_FOR: Final = timedelta(days=7)
_READY: Final = "Ctrl-C stops it."
_KINDS: Final[Mapping[str, Kind[Any]]] = {
    "Secret": SECRETS,
    "MachineOperationCredential": MACHINE_OPERATION_CREDENTIALS,
}

Manifest = dict[str, Any]


def site_of(cloud: str) -> str:
    """Return the site of the cloud's Machines, which is also the prefix of their names."""
    return f"lab-{cloud}"


@dataclass(frozen=True)
class SimulatedCloud:
    """A simulated cloud that serves.

    Args:
        shown: the properties that the simulator printed, by name.
        environment: variables with which the provider's process reaches this cloud and no other.
        objects: manifests of its machines and of the credentials for it.
    """

    cloud: str
    shown: dict[str, str]
    environment: dict[str, str]
    objects: list[Manifest]

    @property
    def machines(self) -> list[Manifest]:
        return [each for each in self.objects if each["kind"] == "Machine"]

    @property
    def provider(self) -> str:
        """The value of `spec.provider` for this cloud."""
        return str(self.machines[0]["spec"]["provider"])

    @property
    def summary(self) -> str:
        """Its addresses, as lines for the screen."""
        return (
            f"  cloud       {self.cloud}, simulated, at {self.shown['endpoint']}\n              control its "
            f"faults: {self.shown['control']}"
        )


@asynccontextmanager
async def running_cloud(data: Path, cloud: str, count: int, profile: str) -> AsyncIterator[SimulatedCloud]:
    """Simulate a cloud inside the context.

    Raises:
        UpFailed: it did not start.
    """
    identity = await lab.load_identity(data, 1)
    folder = data / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    manifests, environment = folder / "machines.yaml", folder / "environment"
    files = ("--manifests", manifests, "--environment", environment)
    flags = ("--count", count, "--name", site_of(cloud), "--profile", profile)
    same = ("--seed", identity.seed, "--port", identity.port_base)
    process = await asyncio.create_subprocess_exec(
        *child.command("unbounded_lab.cloud.__main__", cloud, *map(str, (*flags, *same, *files))),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,  # Ctrl-C goes to the parent alone, which then ends the simulator
    )
    try:
        shown = await _shown(process, cloud)
        yield SimulatedCloud(
            cloud=cloud,
            shown=shown,
            environment=_environment(environment.read_text()),
            objects=list(yaml.safe_load_all(manifests.read_text())),
        )
    finally:
        await asyncio.shield(child.end(process))


async def apply(api: Api, simulated: SimulatedCloud) -> list[str]:
    """Create the machines' objects and the tokens with which replacements join; returns the Machines' names."""
    for manifest in simulated.objects:
        if manifest["kind"] == "Machine":
            await _apply_machine(api, manifest)
        else:
            await _apply_login(api, manifest)
    await tokens_for(api, site_of(simulated.cloud), TOKEN_FOR)
    return [str(each["metadata"]["name"]) for each in simulated.machines]


def left_over(machines: Iterable[Machine], names: Iterable[str], clouds: Iterable[str]) -> list[str]:
    """Return Machines of simulated clouds of an earlier run that this run does not simulate."""
    here, sites = set(names), set(map(site_of, clouds))
    return sorted(machine.name for machine in machines if machine.site in sites and machine.name not in here)


async def _apply_login(api: Api, manifest: Manifest) -> None:
    """Create a credential or its Secret. Update an existing Secret, as each run of the cloud has new keys."""
    kind, metadata = _KINDS[manifest["kind"]], manifest["metadata"]
    try:
        await api.create(kind, manifest)
    except AlreadyExists:
        if kind is SECRETS:
            change = {"stringData": manifest["stringData"]}
            await api.patch(SECRETS, metadata["name"], change, namespace=metadata["namespace"])


async def _apply_machine(api: Api, manifest: Manifest) -> None:
    """Create the Machine. Bind an existing one, whose instance ended with an earlier cloud, to the new instance."""
    try:
        await api.create(MACHINES, manifest)
    except AlreadyExists:
        machine = await api.get(MACHINES, manifest["metadata"]["name"])
        there = manifest["spec"]["providerID"]
        ours = machine.site == manifest["metadata"]["labels"][LABEL_SITE]
        if ours and machine.spec.provider_id != there:
            await api.patch(MACHINES, machine.name, {"spec": {"providerID": there}})


async def _shown(process: Process, cloud: str) -> dict[str, str]:
    """Return the properties that the simulator prints before its table, once it serves."""
    if process.stdout is None:
        raise UpFailed(f"--lab-cloud {cloud}: its process has no output")
    lines: list[str] = []
    try:
        async with asyncio.timeout(READY_S):
            async for line in process.stdout:
                lines.append(line.decode().rstrip("\n"))
                if lines[-1] == _READY:
                    head = lines[: lines.index("")]
                    return {name.strip(): value for name, _, value in (each.rpartition("  ") for each in head)}
    except TimeoutError:
        raise UpFailed(f"--lab-cloud {cloud}: it is not ready after {READY_S:.0f} s: {lines}") from None
    raise UpFailed(f"--lab-cloud {cloud}: {' '.join(lines).removeprefix('error: ') or 'its process has ended'}")


def _environment(text: str) -> dict[str, str]:
    """Parse the file that `--environment` wrote."""
    words = (shlex.split(line)[1] for line in text.splitlines())
    return {name: value for name, _, value in (word.partition("=") for word in words)}
