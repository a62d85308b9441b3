"""Lab hosts that boot, with `unbounded up` as their site: installed from virtual media, joined, and Ready."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard

from tests.cli.running import KUBECTL, Up, up
from tests.fetch.layers import files, image
from tests.fetch.registries import Registry
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS
from unbounded.api.meta import Kind
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import from_kubeconfig
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.machines import machines, secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

NETBOOT: Final = ROOT / "images" / "host-debian12" / "netboot"
DISK: Final = zstandard.ZstdCompressor().compress(b"the disk\n" * 10_000)
ROOTFS: Final = zstandard.ZstdCompressor().compress(b"an archive\n" * 1_000)
TOKEN: Final = "bootstrap-token-labhos"
GRANT: Final = "metalman-lab-hosts"
ROLES: Final = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", dict, namespaced=True)
ROLE_BINDINGS: Final = Kind(ROLES.group, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)


def netboot_image() -> dict[str, bytes]:
    """The files of a host image: the templates of images/, and the least of all else."""
    return {
        "disk/metadata.yaml": b"dhcpBootImageName: shimx64.efi\n",
        "disk/shimx64.efi": b"a loader",
        "disk/vmlinuz": b"a kernel",
        "disk/initrd": b"an initrd",
        "disk/disk.img.zst": DISK,
        "disk/disk.img.zst.sha256": f"{hashlib.sha256(DISK).hexdigest()}  disk.img.zst\n".encode(),
        "disk/rootfs.tar.zst": ROOTFS,
        "disk/rootfs.tar.zst.sha256": f"{hashlib.sha256(ROOTFS).hexdigest()}  rootfs.tar.zst\n".encode(),
        **{f"disk/{path.relative_to(NETBOOT)}": path.read_bytes() for path in NETBOOT.rglob("*.tmpl")},
    }


@dataclass
class Site:
    """An `unbounded up` that serves lab hosts on loopback, and a registry with their image."""

    running: Up
    api: HttpApi
    image: str
    authority: str

    @asynccontextmanager
    async def host(self, profile: str = "ideal", **spec: Any) -> AsyncIterator[LabBmc]:
        """A host that boots, with its Machine `lab-01`."""
        async with LabBmc(
            "lab-01", profile=profile, boot_s=0.2, shutdown_s=0.2, media_ca=self.authority, boots=True
        ) as bmc:
            (machine,) = machines(bmc, image=self.image)
            lease = {
                "ipv4": "127.0.0.5",
                "mac": bmc.identity.mac(0),
                "subnetMask": "255.0.0.0",
                "gateway": "127.0.0.1",
            }
            disk = f"/dev/disk/by-id/ata-{bmc.boards['1'].disks[0].serial_number}"
            machine["spec"]["pxe"] |= {"bootMode": "VirtualMedia", "dhcpLeases": [lease], "targetDisk": disk}
            machine["spec"] |= {"kubernetes": {"version": "v1.34.0", "bootstrapTokenRef": {"name": TOKEN}}} | spec
            await self.running.apply(secret(bmc) | {"apiVersion": "v1"}, machine)
            yield bmc

    async def replace(self) -> dict[str, Any]:
        """Replace the host; return the operation at its end."""
        spec = {"machineRef": "lab-01", "operationKind": "HostReplace"}
        await self.running.apply({"kind": "MachineOperation", "metadata": {"name": "replace"}, "spec": spec})
        async with asyncio.timeout(240):
            while True:
                operation = await self.running.get("mop", "replace")
                if operation.get("status", {}).get("phase") in ("Complete", "Failed"):
                    return operation
                await asyncio.sleep(0.3)


@asynccontextmanager
async def site(tmp_path: Path, *more: str) -> AsyncIterator[Site]:
    certificate = tmp_path / "media.pem"
    certificate.write_bytes(BmcIdentity("media").certificate().pem)  # for loopback, with its key, signed by itself
    registry = Registry()
    content = netboot_image()
    registry.add(image([files(content)]), "v1")
    registry.add(image([files({path: one for path, one in content.items() if "rootfs" not in path})]), "no-rootfs")
    http, tftp, media = map(str, free_ports(3))
    flags = ["--pxe-interface", "lo", "--pxe-dhcp-mode", "none", "--pxe-http-port", http, "--pxe-tftp-port", tftp]
    flags += ["--pxe-media-port", media, "--pxe-media-certificate", str(certificate)]
    flags += ["--pxe-media-key", str(certificate)]
    async with registry.running(), up(tmp_path / "data", *flags, *more) as running:
        await running.says("Ctrl-C stops", within_s=180)
        async with HttpApi(from_kubeconfig(tmp_path / "data" / "kubeconfig")) as api:
            await grant_token(api)
            yield Site(running, api, f"{registry.host}/lab/host:v1", certificate.read_text())


async def grant_token(api: HttpApi) -> None:
    """Create a bootstrap token for hosts without a TPM, which metalman may read."""
    made = site_token_manifest("lab", now=utc_now(), good_for=timedelta(hours=1), default=False)
    made["metadata"]["name"], made["data"]["token-id"] = TOKEN, "bGFiaG9z"
    await api.create(SECRETS, made, namespace="kube-system")
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [TOKEN], "verbs": ["get"]}
    await api.create(ROLES, {"metadata": {"name": GRANT}, "rules": [rule]}, namespace="kube-system")
    binding = {
        "metadata": {"name": GRANT},
        "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": GRANT},
        "subjects": [{"kind": "ServiceAccount", "namespace": "unbounded-kube", "name": "metalman"}],
    }
    await api.create(ROLE_BINDINGS, binding, namespace="kube-system")


async def test_a_host_is_installed_joins_and_renews_its_node(tmp_path: Path) -> None:
    async with site(tmp_path) as lab, lab.host() as bmc:
        operation = await lab.replace()
        history = [(event.what, event.detail) for event in bmc.history()]
        assert operation["status"]["phase"] == "Complete", (operation["status"]["message"], history)
        steps = [
            (what, detail) for what, detail in history if what in ("boot", "installer", "started", "joins", "failed")
        ]
        assert steps[-5:] == [
            ("boot", "Cd"),
            ("installer", "installed"),
            ("boot", "Hdd"),
            ("started", "lab-01"),
            ("joins", "lab-01"),
        ]
        machine = await lab.running.get("mach", "lab-01")
        status = machine["status"]
        assert (status["hardware"]["source"], status["hardware"]["cpus"]) == ("Installer", 64)
        assert status["agent"]["version"] == "lab"
        assert {one["type"]: one["status"] for one in status["conditions"]}["CloudInitDone"] == "True"
        await lab.running.kubectl("wait", "--for=condition=Ready", "node/lab-01", "--timeout=30s")
        lease = await lab.running.get("lease", "-n", "kube-node-lease", "lab-01")

        async def is_renewed() -> bool:
            now = await lab.running.get("lease", "-n", "kube-node-lease", "lab-01")
            return bool(now["spec"] != lease["spec"])

        await eventually(is_renewed, within_s=60, every_s=1)
        assert "Traceback" not in lab.running.printed


async def test_a_second_client_ends_the_boot_of_a_host(tmp_path: Path) -> None:
    async with site(tmp_path) as lab, lab.host("second-client") as bmc:
        operation = await lab.replace()
        assert (operation["status"]["phase"], operation["status"]["reason"]) == ("Failed", "BootContested")
        assert "127.255.255.254" in operation["status"]["message"], operation["status"]["message"]
        assert bmc.boards["1"].installed is None
