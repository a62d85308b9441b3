"""A rack of one machine: `unbounded up` serves network boot to QEMU, behind a BMC, with images from a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import trustme

from tests.cli.running import Up, up
from tests.fetch.registries import docker_registry
from tests.support.qemu import Hardware, QemuMachine, Segment
from tests.support.qemu.router import router
from unbounded.api.names import API_VERSION, LABEL_SITE
from unbounded_lab import machines as manifests
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

MACHINE: Final = "rack1-01"
SITE: Final = "rack1"
ADDRESS: Final = "10.88.0.50"
ENDED: Final = ("Complete", "Failed")
SEEN: Final = {
    "the host was Off",
    "the host fetched its boot loader",
    "the installer started",
    "the image was written",
    "cloud-init finished",
}


T = TypeVar("T")


@dataclass
class Rack:
    """The running parts of a rack; `registry` is `host:port`, `name` that of the machine's Machine."""

    up: Up
    bmc: LabBmc
    machine: QemuMachine
    registry: str
    gateway: str
    name: str = MACHINE

    async def add_machine(self, image: str, **spec: Any) -> None:
        """The BMC's Secret, and the Machine with a lease; `spec` is merged into its spec, one level deep."""
        (body,) = manifests.machines(self.bmc, site=SITE, image=f"{self.registry}/{image}")
        body["spec"]["pxe"]["dhcpLeases"] = [
            {
                "ipv4": ADDRESS,
                "mac": self.machine.hardware.mac.upper(),
                "subnetMask": "255.255.255.0",
                "gateway": self.gateway,
            }
        ]
        for field, value in spec.items():
            body["spec"][field] = body["spec"].get(field, {}) | value
        await self.up.apply(manifests.secret(self.bmc), body)

    async def ask(self, kind: str) -> None:
        """Request an operation, named after its kind."""
        spec = {"machineRef": MACHINE, "operationKind": kind}
        await self.up.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "MachineOperation",
                "metadata": {"name": kind.lower(), "labels": {LABEL_SITE: SITE}},
                "spec": spec,
            }
        )

    async def replace(self, *command: str) -> str:
        """Run a command of the plugin that starts a HostReplace, and return the operation's name."""
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("kubectl-unbounded")),
            *(*command, "--force", "--wait=false", "-o", "json", "--kubeconfig", str(self.up.data / "kubeconfig")),
            stdout=subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return str(json.loads(out)["metadata"]["name"])

    async def until(
        self, look: Callable[[], Awaitable[T | None]], what: str, *, within_s: float, every_s: float = 1
    ) -> T:
        """Observe until there is a result.

        Raises:
            AssertionError: there was none in time, or the machine died.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (found := await look()) is None:
                    self.machine.check()
                    await asyncio.sleep(every_s)
                return found
        raise AssertionError(f"not within {within_s:g} s: {what}")

    async def ended(self, kind: str, *, name: str = "", within_s: float) -> dict[str, Any]:
        """The status of the operation of this kind, or of this name, when it has ended."""

        async def look() -> dict[str, Any] | None:
            status: dict[str, Any] = (await self.up.get("mop", name or kind.lower())).get("status", {})
            return status if "completedAt" in status else None

        return await self.until(look, f"the {kind} has ended", within_s=within_s)

    async def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason of the Machine's conditions."""
        status = (await self.up.get("mach", self.name)).get("status", {})
        return {each["type"]: (each["status"], each.get("reason", "")) for each in status.get("conditions", [])}

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add the machine's console and the control plane's output to a failure inside."""
        try:
            yield
        except BaseException as error:
            error.add_note(self.machine.story())
            error.add_note(f"--- unbounded up\n{self.up.printed[-12000:]}")
            raise


def blank_disk(folder: Path, size: int, name: str = "disk.img") -> Path:
    disk = folder / name
    with disk.open("wb") as file:
        file.truncate(size)
    return disk


def seen(status: dict[str, Any]) -> set[str]:
    return {each["what"] for each in status["evidence"]}


MEDIA: Final[Mapping[str, Any]] = {"bootMode": "VirtualMedia", "dhcpLeases": []}


def static_network(net: Segment, mac: str) -> dict[str, Any]:
    """Return a `spec.network` with ADDRESS."""
    routes = [{"to": "default", "via": net.address}]
    return {"ethernets": [{"name": "lan", "mac": mac, "addresses": [f"{ADDRESS}/24"], "routes": routes}]}


@asynccontextmanager
async def media_rack(hardware: Hardware, net: Segment, folder: Path, *flags: str) -> AsyncIterator[Rack]:
    """A rack whose BMC fetches images of virtual media by HTTPS with the site's CA, and without DHCP."""
    authority, pem = trustme.CA(), folder / "site.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    own = ("--pxe-media-certificate", str(pem), "--pxe-media-key", str(pem), "--pxe-dhcp-mode", "none")
    async with rack(hardware, net, folder, *own, "--pxe-media-url", "https://127.0.0.1:8443", *flags) as it:
        it.bmc.media_ca = authority.cert_pem.bytes().decode()
        yield it


@asynccontextmanager
async def rack(hardware: Hardware, net: Segment, folder: Path, *flags: str) -> AsyncIterator[Rack]:
    """Everything, with the machine off; it ends with the block.

    Args:
        flags: further ones of `unbounded up`.
    """
    (folder / "registry").mkdir()
    data = folder / "data"
    reachable = ("--bind", "0.0.0.0", "--advertise-address", net.address)
    async with (
        router(net.bridge),
        docker_registry(folder / "registry") as registry,
        LabBmc(MACHINE, power=HostPower.OFF) as bmc,
        QemuMachine(hardware, bmc, net, folder / "machine") as machine,
        up(data, *reachable, "--pxe-interface", net.bridge, "--log-level", "info", *flags) as running,
    ):
        await running.says("netboot")
        made = Rack(running, bmc, machine, registry, net.address)
        with made.told():
            yield made
