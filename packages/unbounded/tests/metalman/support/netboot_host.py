"""A host behind a lab BMC that boots from the network, and its servers, as far as the API shows them.

The boot override of its BMC alone decides what the host does at its start. The servers report it in the Machine's
status, and only while the operation is in a stage whose boot window is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tests.metalman.support.site import Cluster, metalman
from unbounded.api.conditions import set_condition
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, ActiveOperation
from unbounded.api.machine_status import RescueSystem, rescue_text
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import AlreadyExists, Api, Conflict, NotFound
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.metalman.replace_table import BOOT_STAGES, BOOTING_KINDS
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower, Press

DIGEST: Final = "sha256:" + "a" * 64
LOOK_S: Final = 2.0
RESCUE: Final = {
    "address": "10.0.0.5",
    "hostKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+",
}
FROM_NETWORK: Final = ("Pxe", "UefiHttp", "Cd")


@dataclass
class Story:
    """The behaviour of a host. The defaults install it.

    Attributes:
        image_s: when the image is on the servers' disk; None: never.
        image_reason: the reason of the condition then.
        own_order: the firmware tries the network first, regardless of the BMC.
        loads: how often the loader is fetched for one start; all but the last one have no effect.
        until: the last milestone; the host stops after it.
        writes_s: how long the image takes, or the erasure of each disk.
        disks: serial numbers of the disks that a HostErase erases, one after the other.
        unerasable: one of them fails.
        fails: the error with which the installer gives up.
        contested: the milestone after which another client appears: LoaderFetched or ImageWritten.
        powers_off: the installer switches the host off in the end, instead of restarting it.
        comes_back: it boots its new disk.
        cloud_init: how cloud-init ends: Succeeded, Failed, or Running without end.
        cloud_init_s: and when.
        attested: why the host receives no token, before cloud-init ends; empty if it does.
        node: a Node comes.
        step_s: from one milestone to the next.
        lag_s: from a request of the host to its milestone in the API; the host requests nothing in between.
        leaves_s: when the user of a rescue system ends it from inside; None: never.
        hangs: a rescue system does not switch itself off.
    """

    image_s: float | None = 0.0
    image_reason: str = "Pulled"
    own_order: bool = False
    loads: int = 1
    until: str = "ImageWritten"
    writes_s: float = 60.0
    disks: tuple[str, ...] = ("S1", "S2")
    unerasable: str = ""
    fails: str = ""
    contested: str = ""
    powers_off: bool = False
    comes_back: bool = True
    cloud_init: str = "Succeeded"
    cloud_init_s: float = 20.0
    attested: str = ""
    node: bool = True
    step_s: float = 3.0
    lag_s: float = 0.0
    leaves_s: float | None = None
    hangs: bool = False


class Hardware(Protocol):
    """The host's board."""

    def boots(self) -> list[str]:
        """Return the source of each of its starts, by its boot override."""
        ...

    def is_on(self) -> bool: ...
    def restart(self) -> None: ...
    def switch_off(self) -> None: ...


class LabHardware:
    """The board behind a lab BMC with one system."""

    def __init__(self, bmc: LabBmc) -> None:
        self._bmc = bmc

    def boots(self) -> list[str]:
        return [event.detail for event in self._bmc.history() if event.what == "boot"]

    def is_on(self) -> bool:
        return self._bmc.power() in (HostPower.ON, HostPower.POWERING_ON)

    def restart(self) -> None:
        self._bmc.host().press(Press.FORCE_RESTART, self._bmc.clock.now())

    def switch_off(self) -> None:
        self._bmc.host().press(Press.FORCE_OFF, self._bmc.clock.now())


class NetbootHost:
    """One host and what is seen of it."""

    def __init__(self, api: Api, now: WallClock, machine: str, hardware: Hardware, story: Story) -> None:
        self._api, self._now, self._machine, self._hardware, self.story = api, now, machine, hardware, story
        self._loads: dict[str, int] = {}
        self._started = 0
        self._kind = ""  # of the operation whose boot it is
        self._erasures: dict[str, dict[str, Any]] = {}
        self.begun: set[tuple[str, str]] = set()  # (boot, disk) whose data are lost
        self.installs: list[str] = []  # the boots that wrote an image
        self.rescues: list[str] = []  # the boots with a rescue system
        self.sources: list[str] = []  # of its boots: where it really came up from

    async def run(self) -> None:
        """Live until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._get_image())
            boot: asyncio.Task[None] | None = None
            while True:
                boots = self._hardware.boots()
                if boot is not None and (len(boots) > self._started or not self._hardware.is_on()):
                    boot.cancel()  # it is restarted, or off
                    boot = None
                if len(boots) > self._started:
                    self._started = len(boots)
                    boot = tasks.create_task(self._start(boots[-1]))
                await asyncio.sleep(LOOK_S)

    async def _get_image(self) -> None:
        if self.story.image_s is None:
            await self.condition("NetbootImageReady", "False", "Pulling", "12 % of registry.lab/host:v1")
            return
        await asyncio.sleep(self.story.image_s)
        await self.condition("NetbootImageReady", "True", self.story.image_reason, DIGEST)

    async def _start(self, source: str) -> None:
        wanted = source in FROM_NETWORK or self.story.own_order
        boot = await self._window() if wanted else None
        if boot is None:
            self.sources.append("disk")
            await self._boot_disk()
            return
        self.sources.append("network")
        await self._boot_network(boot)

    async def _window(self) -> str | None:
        """Return the boot that is requested now."""
        active = await self._active()
        if active is None or active.kind not in BOOTING_KINDS or active.uid in self.installs:
            return None
        self._kind = active.kind
        with contextlib.suppress(NotFound):
            operation = await self._api.get(MACHINE_OPERATIONS, active.name)
            if operation.status.targets and operation.status.targets[0].stage in BOOT_STAGES:
                return active.uid
        return None

    async def _boot_network(self, boot: str) -> None:
        story = self.story
        for _ in range(story.loads):
            await asyncio.sleep(self.story.step_s)
            self._loads[boot] = self._loads.get(boot, 0) + 1
            await self._saw(boot, "LoaderFetched")
        if story.contested == "LoaderFetched":
            await self._contested(boot)
            return
        last = "ImageWriting" if self._kind == "HostReplace" else "HardwareReported"
        for milestone in ("KernelFetched", "InstallerStarted", last):
            if story.until == "LoaderFetched":
                return
            await asyncio.sleep(self.story.step_s)
            if await self._window() != boot:
                return  # it gets nothing any more
            await asyncio.sleep(self.story.lag_s)
            if milestone == "HardwareReported" and story.fails:
                break
            await self._saw(boot, milestone)
            if story.until == milestone:
                return
        if story.fails:
            await self._saw(boot, "Failed", message=story.fails)
            return
        if self._kind == "HostErase":
            await self._erase(boot)
        if self._kind == "HostRescue":
            await self._rescue(boot)
        if self._kind != "HostReplace":
            return
        for percent in range(0, 101, 5):
            await self._saw(boot, "ImageWriting", percent=percent)
            await asyncio.sleep(story.writes_s / 20)
        await self._written(boot)

    async def _erase(self, boot: str) -> None:
        """Erase the disks one by one; each is begun only while the boot is requested."""
        story = self.story
        records = {serial: {"serialNumber": serial, "state": "Untouched"} for serial in story.disks}
        self._erasures.setdefault(boot, {}).update({**records, **self._erasures.get(boot, {})})
        for serial in story.disks:
            if self._erasures[boot][serial]["state"] == "Erased":
                continue
            if await self._window() != boot:
                return
            await self._saw_erasure(boot, serial, "Erasing")
            if await self._window() != boot:  # metalman lets none begin that it has not recorded
                return
            self.begun.add((boot, serial))
            await asyncio.sleep(story.writes_s)
            await self._saw_erasure(boot, serial, "Failed" if serial == story.unerasable else "Erased")
        if story.unerasable in story.disks:
            await self._saw(boot, "Failed", message=f"disk {story.unerasable} is not erased")
            return
        await asyncio.sleep(story.step_s)
        if story.until != "HardwareReported":
            await self._saw(boot, "DisksErased", erasures=list(self._erasures[boot].values()))

    async def _saw_erasure(self, boot: str, serial: str, state: str) -> None:
        self._erasures[boot][serial] = {"serialNumber": serial, "state": state}
        await self._saw(boot, "HardwareReported", erasures=list(self._erasures[boot].values()))

    async def _rescue(self, boot: str) -> None:
        """Run the rescue system, until its window is closed or its user ends it."""
        await asyncio.sleep(self.story.step_s)
        if await self._window() != boot:
            return
        message = rescue_text(RescueSystem(address=RESCUE["address"], host_key=RESCUE["hostKey"]))
        await self._saw(boot, "RescueStarted", message=message, rescue=RESCUE)
        self.rescues.append(boot)
        left_s = self.story.leaves_s
        while await self._window() == boot:
            await asyncio.sleep(self.story.step_s)
            if left_s is not None and (left_s := left_s - self.story.step_s) <= 0:
                await self._saw(boot, "RescueEnded")
                break
        if not self.story.hangs:
            self._hardware.switch_off()

    async def _written(self, boot: str) -> None:
        self.installs.append(boot)
        await self._saw(boot, "ImageWritten")
        await self.condition("Repaved", "True", "Succeeded", f"image={DIGEST}")
        await asyncio.sleep(self.story.step_s)
        if self.story.powers_off:
            self._hardware.switch_off()
        else:
            self._hardware.restart()

    async def _contested(self, boot: str) -> None:
        await self._saw(boot, "Contested", message="10.0.0.66 used the prefix of 10.0.0.5")

    async def _boot_disk(self) -> None:
        active = await self._active()
        if active is None or self.installs[-1:] != [active.uid] or not self.story.comes_back:
            return
        await asyncio.sleep(self.story.step_s)
        await self.condition("CloudInitDone", "False", "Running", "modules-config")
        await asyncio.sleep(self.story.cloud_init_s)
        if self.story.attested:
            quote = {"boot": self.installs[-1], "at": rfc3339(self._now())}
            await self._api.patch(MACHINES, self._machine, {"status": {"tpm": {"quote": quote}}}, subresource="status")
            await self.condition("Attested", "False", self.story.attested, f"refused: {self.story.attested}")
        if self.story.contested == "ImageWritten":
            await self._contested(self.installs[-1])
        if self.story.cloud_init == "Running":
            return
        done = self.story.cloud_init == "Succeeded"
        await self.condition("CloudInitDone", str(done), self.story.cloud_init, "modules-final")
        if done and self.story.node:
            await self.node(ready=False)
            await asyncio.sleep(10)
            await self.node(ready=True)

    # The API

    async def _active(self) -> ActiveOperation | None:
        return (await self._api.get(MACHINES, self._machine)).status.active_operation

    async def node(self, *, ready: bool, boot_id: str | None = None) -> None:
        """Make the Node report, with a boot id for each start of the host."""
        with contextlib.suppress(AlreadyExists):
            await self._api.create(NODES, {"metadata": {"name": self._machine}})
        at = rfc3339(self._now())
        status = {
            "conditions": [{"type": "Ready", "status": str(ready), "lastHeartbeatTime": at}],
            "nodeInfo": {"bootID": boot_id or f"boot-{self._started}"},
        }
        await self._api.patch(NODES, self._machine, {"status": status}, subresource="status")

    async def condition(self, kind: str, status: str, reason: str, message: str) -> None:
        while True:
            raw = await self._api.get(MACHINES.raw(), self._machine)
            before, now = raw.get("status", {}).get("conditions", ()), rfc3339(self._now())
            conditions = set_condition(before, kind, status, reason, message, now)
            metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
            patch = {"metadata": metadata, "status": {"conditions": conditions}}
            with contextlib.suppress(Conflict):
                if conditions is not None:
                    await self._api.patch(MACHINES, self._machine, patch, subresource="status")
                return

    async def _saw(self, boot: str, milestone: str, **said: Any) -> None:
        seen = {"boot": boot, "milestone": milestone, "loads": self._loads.get(boot, 0), "imageDigest": DIGEST}
        erasures = list(self._erasures.get(boot, {}).values()) or None
        empty: dict[str, Any] = {"percent": None, "message": None, "erasures": erasures}
        patch: dict[str, Any] = {"status": {"netboot": {**empty, **seen, **said}}}
        if milestone == "ImageWritten":
            pxe = (await self._api.get(MACHINES, self._machine)).spec.pxe
            image = {
                "image": "" if pxe is None else pxe.image,
                "digest": DIGEST,
                "boot": boot,
                "at": rfc3339(self._now()),
            }
            patch["status"]["image"] = image
        await self._api.patch(MACHINES, self._machine, patch, subresource="status")


@asynccontextmanager
async def netboot_host(cluster: Cluster, machine: str, story: Story | None = None) -> AsyncIterator[NetbootHost]:
    """Let the host of a Machine live while inside."""
    async with living(cluster, machine, LabHardware(cluster.bmcs[machine]), story or Story()) as host:
        yield host


@asynccontextmanager
async def living(cluster: Cluster, machine: str, hardware: Hardware, story: Story) -> AsyncIterator[NetbootHost]:
    """The same on any board."""
    host = NetbootHost(cluster.api, cluster.now, machine, hardware, story)
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


async def replaced(
    bmc: LabBmc,
    story: Story | None = None,
    *,
    cluster: Cluster | None = None,
    spec: dict[str, Any] | None = None,
    kind: str = "HostReplace",
    parameters: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
) -> tuple[Cluster, str, MachineOperation]:
    """The cluster, the Machine and the operation of a HostReplace, or of another kind, that has ended."""
    cluster = cluster or Cluster()
    (machine,) = await cluster.add(bmc)
    if spec:
        await cluster.api.patch(MACHINES, machine, {"spec": spec})
    if status:
        await cluster.api.patch(MACHINES, machine, {"status": status}, subresource="status")
    async with metalman(cluster), netboot_host(cluster, machine, story):
        name = await cluster.ask(kind, machine, parameters=parameters or {})
        return cluster, machine, await cluster.ended(name, within_s=7200.0)


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def stages_of(cluster: Cluster, name: str) -> list[str]:
    """The stages of an operation as they followed each other."""
    found: list[str] = []
    for write in cluster.written:
        targets = write.new.get("status", {}).get("targets") or [{}]
        stage = targets[0].get("stage")
        if write.name == name and stage and stage not in found[-1:]:
            found.append(stage)
    return found
