"""A boot from its first packet to its end: the servers' requests, and the Machine's status."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tests.explain.staging import commands
from tests.metalman.support.netboot_objects import ADDRESS, IMAGE, MAC, REDFISH, lease, machine_body
from tests.metalman.support.netboot_site import NETBOOT_FILES, SERVE_URL, World, netboot_site
from tests.metalman.support.reservations import asked, pxe
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES, Machine, NetbootStatus
from unbounded.api.meta import Kind
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.kube.api import Forbidden
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp import reply_or_drop as dhcp
from unbounded.metalman.dhcp.model import Arrival, DhcpAnswer, DhcpFinding, DhcpFindingKind, DhcpReply
from unbounded.metalman.dhcp.packet import MessageType, Packet
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    NotReadyYet,
    OnDisk,
    ProgressReport,
    Rendered,
    ReportAnswer,
)
from unbounded.metalman.netboot.model import BootImages
from unbounded.metalman.tftp.protocol import TftpRejection

T = TypeVar("T")
WITH_BMC: dict[str, Any] = {"pxe": {"redfish": REDFISH}}
REPAVE: dict[str, Any] = {"spec": {"operations": {"repaveCounter": 1}}}
STRANGER = "10.0.0.99"
DISK: Final = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"


def condition(machine: Machine, kind: str) -> tuple[str, str, str] | None:
    found = (each for each in machine.status.conditions if each.type == kind)
    return next(((each.status, each.reason, each.message) for each in found), None)


async def netboot(world: World, machine: str = "m1") -> NetbootStatus:
    seen = (await world.status(machine)).status.netboot
    assert seen is not None
    return seen


async def said_by_why(world: World, machine: str, reason: str) -> str:
    """Return the explanation of `why` for a Machine whose leases are not served."""
    links = (await explain(world.api, Topic.MACHINE, machine)).links
    assert links[0].held_by == f"condition NetbootServed=False ({reason})"
    assert links[0].next_step == "metalman serves it as soon as that is corrected"
    assert commands(links[:1]) == [f"kubectl edit mach {machine}"]
    return links[0].what


def dhcp_asks(world: World, packet: Packet) -> DhcpAnswer:
    """Return the DHCP server's answer to a packet."""
    reservations = world.site.reservations
    reservations.packet_received(packet, Arrival())
    answer = dhcp.answer(packet, Arrival(), reservations)
    if isinstance(answer, DhcpReply):
        reservations.reply_sent(packet, answer)
    for finding in answer.findings:
        world.site.findings.report(finding)
    return answer


def boot_file(answer: DhcpAnswer) -> bytes | None:
    assert isinstance(answer, DhcpReply)
    return answer.packet.options.get(opt.BOOT_FILE)


async def fetched(world: World, path: str, *, prefix: str | None = None, client: str = ADDRESS) -> bytes:
    """A file, as a GET of all of it."""
    found = await world.site.file(client, prefix, path)
    assert isinstance(found, OnDisk | Rendered), found
    await world.site.served(client, prefix, path)
    return found.content if isinstance(found, Rendered) else found.path.read_bytes()


async def refused(world: World, path: str, *, prefix: str | None = None, client: str = ADDRESS) -> int:
    found = await world.site.file(client, prefix, path)
    assert isinstance(found, FileRejected), found
    return found.code


async def test_a_boot_from_its_first_packet_to_its_end(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        boot = await world.replace()
        prefix = world.prefix()

        answer = dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))
        assert boot_file(answer) == b"shimx64.efi"
        seen = await netboot(world)
        assert (seen.boot, seen.milestone, seen.image_digest) == (boot, "Offered", "sha256:2")
        served = condition(await world.status(), "NetbootServed")
        assert served is not None
        assert served[:2] == ("True", "Served")

        assert await fetched(world, "shimx64.efi") == b"the shim"
        assert await fetched(world, "grubx64.efi") == b"the loader"
        seen = await netboot(world)
        assert (seen.milestone, seen.loads) == ("LoaderFetched", 1)
        config = await fetched(world, "grub/grub.cfg")
        assert f"unbounded.serve_url={SERVE_URL}/boot/{prefix} ".encode() in config
        assert await fetched(world, "vmlinuz") == b"the kernel"
        assert (await netboot(world)).milestone == "KernelFetched"

        assert await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Starting")) == ReportAnswer(
            200, {"status": "ok"}
        )
        assert (await netboot(world)).milestone == "InstallerStarted"
        assert await fetched(world, "disk.img.gz", prefix=prefix) == b"of the host image"
        await world.site.progress(
            ADDRESS, prefix, ProgressReport(stage="Writing", percent=40, message="2 of 5 GB", disk=DISK)
        )
        seen = await netboot(world)
        assert (seen.milestone, seen.percent, seen.message) == ("ImageWriting", 40, "Writing: 2 of 5 GB")
        assert (await world.status()).status.target_disk == DISK

        assert (await world.site.disable(ADDRESS, prefix)).code == 200
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.netboot is not None
        assert machine.status.netboot.milestone == "ImageWritten"
        assert condition(machine, "Repaved") == ("True", "Succeeded", f"image={IMAGE}")
        assert machine.status.operations is None  # an operation's own counter is its executor's
        await world.caught_up()

        # The window is closed; the installed system still has its data.
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) is None
        assert await refused(world, "shimx64.efi") == 404
        assert b"m1" in await fetched(world, "cloud-init/meta-data", prefix=prefix)
        assert (await world.site.disable(ADDRESS, prefix)).code == 200
        for kind, result in (("start", ""), ("finish", "SUCCESS")):
            event = CloudInitEvent(name="modules-final", event_type=kind, result=result)
            assert (await world.site.cloud_init(ADDRESS, prefix, event)).code == 200
        done = condition(await world.status(), "CloudInitDone")
        assert done is not None
        assert done[:2] == ("True", "Succeeded")

        await world.stage("WaitingNode", phase="Complete")
        assert await refused(world, "cloud-init/meta-data", prefix=prefix) == 404
        assert (await world.site.disable(ADDRESS, prefix)).code == 404


async def test_outside_a_boot_there_are_addresses_and_nothing_else(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(stage="WaitingImage")
        writes = world.api.writes
        answer = dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))
        assert boot_file(answer) is None
        for path in ("shimx64.efi", "grub/grub.cfg", "vmlinuz", "initrd", "cloud-init/user-data"):
            assert await refused(world, path) == 404
            assert isinstance(await world.site.find(ADDRESS, path), TftpRejection)
        for prefix in ("", "a" * 32):
            assert await refused(world, "vmlinuz", prefix=prefix) == 404
            assert (await world.site.disable(ADDRESS, prefix)).code == 404
            assert (await world.site.progress(ADDRESS, prefix, ProgressReport(stage="x", failed=True))).code == 404
            assert (await world.site.cloud_init(ADDRESS, prefix, CloudInitEvent(event_type="start"))).code == 404
            assert (await world.site.attest(ADDRESS, prefix, b"{}")).code == 404
        await world.site.flush("m1")
        assert not world.attestation.asked
        assert world.api.writes == writes


async def test_a_counter_without_a_bmc_is_carried_through_by_the_servers_alone(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**REPAVE))
        machine = await world.status()
        assert condition(machine, "Repaved") == ("False", "Pending", f"image={IMAGE}")
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) == b"shimx64.efi"
        prefix = world.prefix()
        assert (await world.site.disable(ADDRESS, prefix)).code == 200
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.operations is not None
        assert machine.status.operations.repave_counter == 1
        assert condition(machine, "Repaved") == ("True", "Succeeded", f"image={IMAGE}")
        await world.caught_up()
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) is None
        assert b"m1" in await fetched(world, "cloud-init/meta-data", prefix=prefix)
        event = CloudInitEvent(name="modules-final", event_type="finish", result="SUCCESS")
        assert (await world.site.cloud_init(ADDRESS, prefix, event)).code == 200
        await world.site.flush("m1")
        await world.caught_up()
        assert await refused(world, "cloud-init/meta-data", prefix=prefix) == 404


async def test_pinned_tpm_does_not_restrict_boot_reports(tmp_path: Path) -> None:
    """It protects the token. Reports are trusted by the prefix, which is in the loader's first file."""
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC, status={"tpm": {"ekPublicKey": "-----BEGIN PUBLIC KEY-----"}}))
        await world.replace()
        config = (await fetched(world, "grub/grub.cfg")).decode()
        prefix = config.partition("/boot/")[2].partition(" ")[0]
        assert (await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Starting"))).code == 200
        assert (await world.site.disable(ADDRESS, prefix)).code == 200
        ended = CloudInitEvent(name="modules-final", event_type="finish", result="SUCCESS")
        assert (await world.site.cloud_init(ADDRESS, prefix, ended)).code == 200
        machine = await world.status()
        assert machine.status.netboot is not None
        assert machine.status.netboot.milestone == "ImageWritten"
        assert world.attestation.asked == []


COUNTING_GRUB: Final = """\
{{- if gt .Machine.Spec.Operations.RepaveCounter .Machine.Status.Operations.RepaveCounter -}}
linux vmlinuz node_name={{.Machine.Name}}
{{- else -}}
chainloader /EFI/ubuntu/shimx64.efi
{{- end}}"""


@pytest.mark.parametrize("counters", [{}, {"operations": {"repaveCounter": 3}}], ids=["no counters", "a counter"])
async def test_a_template_that_asks_the_counters_installs_in_an_operations_boot_too(
    tmp_path: Path, counters: dict[str, Any]
) -> None:
    async with netboot_site(tmp_path, files={**NETBOOT_FILES, "grub/grub.cfg.tmpl": COUNTING_GRUB}) as world:
        await world.machine(machine_body(**WITH_BMC, spec=counters, status=counters))
        await world.replace()
        assert await fetched(world, "grub/grub.cfg") == b"linux vmlinuz node_name=m1"
        written = (await world.status()).status.operations
        assert (written.repave_counter if written else None) == counters.get("operations", {}).get("repaveCounter")


async def test_by_address_alone_there_are_the_first_stages_only(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        for path in ("disk.img.gz", "metadata.yaml", "cloud-init/user-data", "cloud-init/vendor-data", "wrong"):
            assert await refused(world, path) == 404
            assert isinstance(await world.site.find(ADDRESS, path), TftpRejection)
        for path in ("../x", "/etc/passwd", "grub/../vmlinuz", "a\\b", ""):
            assert await refused(world, path) == 404
            assert await refused(world, path, prefix=world.prefix()) == 404
        assert await refused(world, "vmlinuz", client=STRANGER) == 404
        assert await fetched(world, "grub//grub.cfg")


async def test_second_client_ends_the_boot_with_an_event(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        boot = await world.replace()
        prefix = world.prefix()
        await fetched(world, "vmlinuz")
        assert (await world.site.progress(STRANGER, prefix, ProgressReport(stage="x", failed=True))).code == 409
        assert (await world.site.disable(ADDRESS, prefix)).code == 404
        assert await refused(world, "vmlinuz") == 404
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) is None
        seen = await netboot(world)
        assert (seen.boot, seen.milestone) == (boot, "Contested")
        assert STRANGER in (seen.message or "")
        assert [(name, reason) for name, reason, _ in world.told] == [("m1", "BootContested")]
        assert prefix not in str(world.told) + str(await world.status())
        await world.caught_up()
        assert not world.site.requests


async def test_another_mac_behind_the_address_gets_nothing_of_the_boot(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        world.macs[ADDRESS] = MAC
        assert await fetched(world, "grub/grub.cfg")
        world.macs[ADDRESS] = "66:66:00:00:00:01"
        assert await refused(world, "grub/grub.cfg") == 409
        assert (await netboot(world)).milestone == "Contested"


async def test_foreign_mac_of_a_tftp_client_is_detected_at_transfer_end(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        content = await world.site.find(ADDRESS, "vmlinuz")
        assert not isinstance(content, TftpRejection)
        assert content.read(0, 100) == b"the kernel"
        world.macs[ADDRESS] = "66:66:00:00:00:01"
        content.close()
        assert (await netboot(world)).milestone == "Contested"


async def test_tftp_counts_complete_reads_and_not_size_queries(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        probe = await world.site.find(ADDRESS, "shimx64.efi")
        assert not isinstance(probe, TftpRejection)
        assert probe.size == len("the shim")
        probe.close()
        assert (await world.status()).status.netboot is None
        for _ in range(2):
            content = await world.site.find(ADDRESS, "shimx64.efi")
            assert not isinstance(content, TftpRejection)
            content.read(0, 4)
            content.read(4, 4)
            content.close()
        assert (await netboot(world)).loads == 2


async def test_a_script_after_its_loader_is_not_a_load_of_its_own(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        for _ in range(3):
            await fetched(world, "ipxe.efi")
            await fetched(world, "boot.ipxe")
        assert (await netboot(world)).loads == 3


async def test_second_machine_id_of_a_mac_ends_the_boot_without_an_answer(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        ids = (b"\0" + b"a" * 16, b"\0" + b"b" * 16)
        files = [
            boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7) | {opt.MACHINE_ID: each}))) for each in ids
        ]
        assert files == [b"shimx64.efi", None]
        assert (await netboot(world)).milestone == "Contested"


async def test_machine_ids_prove_nothing_after_the_kernel_also_at_another_replica(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        boot = await world.replace()
        status = {"netboot": {"boot": boot, "milestone": "KernelFetched"}}  # another one has served it
        await world.api.patch(MACHINES, "m1", {"status": status}, subresource="status")
        await world.caught_up()
        for each in (b"\0" + b"a" * 16, b"\0" + b"b" * 16):
            dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7) | {opt.MACHINE_ID: each}))
        assert (await netboot(world)).milestone == "KernelFetched"


async def test_the_installers_failure_is_written_down(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        report = ProgressReport(stage="ChoosingDisk", message="two blank disks: sda, sdb", failed=True)
        assert (await world.site.progress(ADDRESS, world.prefix(), report)).code == 200
        seen = await netboot(world)
        assert (seen.milestone, seen.message) == ("Failed", "ChoosingDisk: two blank disks: sda, sdb")


async def test_what_a_host_says_of_its_url_does_not_show_the_prefix(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        prefix, url = world.prefix(), world.site.url("m1")
        await world.site.progress(
            ADDRESS, prefix, ProgressReport(stage="Writing", message=f"{url}/disk.img.gz: HTTP 500")
        )
        event = CloudInitEvent(name="init", event_type="finish", result="FAIL", description=f"{'x' * 980} {url}/x: 404")
        await world.site.cloud_init(ADDRESS, prefix, event)
        machine = await world.status()
        assert machine.status.netboot is not None
        assert (machine.status.netboot.message or "").endswith("/boot/…/disk.img.gz: HTTP 500")
        assert prefix[:8] not in str(machine)  # nor a part of it, where the text is cut


async def test_until_images_and_facts_are_there_hosts_are_told_to_wait(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        there, world.images.said = world.images.said, NotReadyYet(5, "40 % of the image is there")
        assert await world.site.file(ADDRESS, None, "vmlinuz") == NotReadyYet(5, "40 % of the image is there")
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) is None
        world.images.said = there
        assert await fetched(world, "vmlinuz")
        world.facts.known = False
        assert isinstance(await world.site.file(ADDRESS, None, "grub/grub.cfg"), NotReadyYet)


async def test_installer_gets_retry_answers_during_an_undo(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(stage="WaitingInstaller")
        prefix = world.prefix()
        await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Writing", percent=50))
        await world.stage("Undoing")
        assert boot_file(dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))) is None
        assert await refused(world, "vmlinuz") == 404
        assert isinstance(await world.site.file(ADDRESS, prefix, "disk.img.gz"), NotReadyYet)
        assert (await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Writing", percent=60))).code == 503
        assert (await world.site.disable(ADDRESS, prefix)).code == 503
        assert (await netboot(world)).milestone == "ImageWriting"  # what was seen before is written down all the same
        await world.stage("WaitingInstaller")
        assert (await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Writing", percent=70))).code == 200
        assert (await world.site.disable(ADDRESS, prefix)).code == 200
        await world.stage("UndoingLoader")
        assert (await world.site.disable(ADDRESS, prefix)).code == 404


async def test_template_error_is_reported_to_host_event_and_status(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        await fetched(world, "shimx64.efi")
        found = await world.site.file(ADDRESS, world.prefix(), "wrong")
        assert isinstance(found, FileRejected)
        assert found.code == 500
        assert "wrong.tmpl:2" in found.text
        assert "Nonsense" in found.text
        ((name, reason, text),) = world.told
        assert (name, reason) == ("m1", "TemplateFailed")
        assert "wrong.tmpl:2" in text
        await world.site.flush("m1")
        assert "wrong.tmpl:2" in ((await netboot(world)).message or "")


async def test_disk_image_digest_is_served_from_the_image_metadata(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        assert await refused(world, "disk.img.gz.sha256", prefix=world.prefix()) == 404
        assert isinstance(world.images.said, BootImages)
        world.images.said = replace(world.images.said, disk_sha256="ab" * 32)
        assert await fetched(world, "disk.img.gz.sha256", prefix=world.prefix()) == b"ab" * 32 + b"  disk.img.gz\n"
        for wrong in ("disk.img.zst.sha256", "vmlinuz.sha256", ".sha256"):
            assert await refused(world, wrong, prefix=world.prefix()) == 404


async def test_the_size_of_a_packed_disk_image_is_told(tmp_path: Path) -> None:
    """Seen: of gzip a disk that is too small was found out when its old content was lost."""
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        assert isinstance(world.images.said, BootImages)
        (world.images.said.disk.root / "disk.img.gz").write_bytes(gzip.compress(bytes(70_000)) + gzip.compress(b"end"))
        assert await fetched(world, "disk.img.gz.size", prefix=world.prefix()) == b"70003\n"
        for wrong in ("disk.img.zst.size", "vmlinuz.size", ".size", "disk.img.size"):
            assert await refused(world, wrong, prefix=world.prefix()) == 404


USER_DATA = "cloud-init/user-data"


class OwnNamespaceOnly(MemoryApi):
    """An API that keeps its user to the ConfigMaps of unbounded-kube, as the rights of deploy/rbac do."""

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        if kind.kind == "ConfigMap" and namespace != "unbounded-kube":
            raise Forbidden(f"configmaps {name!r} is forbidden", code=403)
        return await super().get(kind, name, namespace=namespace)


async def test_unreadable_user_data_is_reported_and_the_host_waits(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, api=OwnNamespaceOnly()) as world:
        named = {"name": "users", "namespace": "default", "key": "user-data"}
        body = machine_body(**WITH_BMC)
        body["spec"]["pxe"]["cloudInit"] = {"userDataConfigMapRef": named}
        await world.machine(body)
        await world.replace()
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), USER_DATA), NotReadyYet)
        await world.site.flush("m1")
        said = (await netboot(world)).message or ""
        assert "metalman has no permission to read " in said
        assert world.told[-1][1:] == ("UserDataMissing", said)


async def test_user_data_comes_from_the_config_map(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        body = machine_body(**WITH_BMC)
        await world.machine(body)
        await world.replace()
        assert await fetched(world, USER_DATA, prefix=world.prefix()) == b"#cloud-config\n"

        named = {"name": "users", "namespace": "default", "key": "user-data"}
        patch = {"spec": {"pxe": {"cloudInit": {"userDataConfigMapRef": named}}}}
        await world.api.patch(MACHINES, "m1", patch)
        await world.caught_up()
        assert await fetched(world, USER_DATA, prefix=world.prefix()) == b"#cloud-config\n"
        assert "ConfigMap default/users does not exist" in world.told[-1][2]

        content = {"data": {"other": "x"}, "binaryData": {"binary": "aGVsbG8="}}
        await world.api.create(CONFIG_MAPS, {"metadata": {"name": "users"}, **content}, namespace="default")
        found = await world.site.file(ADDRESS, world.prefix(), USER_DATA)
        assert isinstance(found, FileRejected)
        assert found.code == 404
        assert "no key 'user-data'; its keys are: binary, other" in world.told[-1][2]

        for key, value in (("other", b"x"), ("binary", b"hello")):
            await world.api.patch(
                MACHINES, "m1", {"spec": {"pxe": {"cloudInit": {"userDataConfigMapRef": {"key": key}}}}}
            )
            await world.caught_up()
            assert await fetched(world, USER_DATA, prefix=world.prefix()) == value


async def test_duplicate_leases_are_told_on_both_machines_and_taken_back(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body("m1", **REPAVE))
        await world.machine(machine_body("m2", leases=[lease(ADDRESS, "52:54:00:00:00:02")]))
        for name, other in (("m1", "m2"), ("m2", "m1")):
            said = condition(await world.status(name), "NetbootServed")
            assert said is not None
            assert said[:2] == ("False", "DuplicateLease")
            assert other in said[2]
            assert said[2] in await said_by_why(world, name, "DuplicateLease")
        assert await refused(world, "vmlinuz") == 404
        assert await refused(world, "vmlinuz", client=ADDRESS) == 404
        await world.api.patch(MACHINES, "m2", {"spec": {"pxe": {"dhcpLeases": []}}})
        await world.caught_up()
        for name in ("m1", "m2"):
            said = condition(await world.status(name), "NetbootServed")
            assert said is not None
            assert said[:2] == ("True", "Served")
        await world.caught_up()
        assert await fetched(world, "vmlinuz") == b"the kernel"


async def test_trouble_that_dhcp_found_is_a_condition_until_the_host_was_served(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        dhcp_asks(world, asked(MessageType.DISCOVER, pxe(11)))
        said = condition(await world.status(), "NetbootServed")
        assert said is not None
        assert said[:2] == ("False", "NoBootFile")
        assert "arm 64-bit UEFI" in said[2]
        await world.caught_up()
        dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))
        said = condition(await world.status(), "NetbootServed")
        assert said is not None
        assert said[:2] == ("True", "Served")

        world.site.findings.report(
            DhcpFinding(DhcpFindingKind.ADDRESS_IN_USE, "m1", f"{ADDRESS} is in use by another host")
        )
        await world.site.flush("m1")
        await world.caught_up()
        dhcp_asks(world, asked(MessageType.DISCOVER, pxe(7)))  # the offer before the next decline
        said = condition(await world.status(), "NetbootServed")
        assert said is not None
        assert said[:2] == ("False", "AddressInUse")
        await world.caught_up()
        await fetched(world, "shimx64.efi")
        said = condition(await world.status(), "NetbootServed")
        assert said is not None
        assert said[:2] == ("True", "Served")


async def test_another_dhcp_server_is_told_on_the_machines_that_are_booting(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body("m1", **REPAVE))
        await world.machine(machine_body("m2", leases=[lease("10.0.0.51", "52:54:00:00:00:02")]))
        world.site.findings.report(
            DhcpFinding(DhcpFindingKind.FOREIGN_SERVER, "", "another DHCP server, 10.0.0.2, answers")
        )
        assert [(name, reason) for name, reason, _ in world.told] == [("m1", "ForeignDHCPServer")]


async def test_machines_of_another_site_are_not_served(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, site="lab") as world:
        body = machine_body(**REPAVE)
        await world.machine(body)
        await asyncio.sleep(0)
        assert world.site.reservations.client(MAC) is None
        assert not world.site.requests
        await world.api.patch(MACHINES, "m1", {"metadata": {"labels": {"unbounded-cloud.io/site": "lab"}}})
        await eventually(lambda: world.site.requests)
        await world.api.patch(MACHINES, "m1", {"metadata": {"labels": {"unbounded-cloud.io/site": "far"}}})
        await eventually(lambda: not world.site.requests)
        assert world.site.reservations.client(MAC) is None


async def test_site_label_change_does_not_move_a_running_boot(tmp_path: Path) -> None:
    async with netboot_site(tmp_path / "a", site="lab") as here:
        labels = {"unbounded-cloud.io/site": "lab"}
        await here.machine({**machine_body(**WITH_BMC), "metadata": {"name": "m1", "labels": labels}})
        await here.replace()
        async with netboot_site(tmp_path / "b", site="far", api=here.api) as far:
            await here.api.patch(MACHINES, "m1", {"metadata": {"labels": {"unbounded-cloud.io/site": "far"}}})
            await here.caught_up()
            await far.caught_up()
            assert await fetched(here, "shimx64.efi")
            assert await refused(far, "shimx64.efi") == 404
            assert far.site.reservations.client(MAC) is None
            await here.stage("WaitingNode", phase="Complete")
            await far.caught_up()
            assert here.site.reservations.client(MAC) is None
            assert far.site.reservations.client(MAC) is not None


async def test_a_second_replica_and_one_after_a_restart_serve_the_same_boot(tmp_path: Path) -> None:
    async with netboot_site(tmp_path / "a") as first:
        await first.machine(machine_body(**WITH_BMC))
        await first.replace()
        async with netboot_site(tmp_path / "b", api=first.api) as second:
            await eventually(lambda: second.site.requests)
            assert second.prefix() == first.prefix()
            await fetched(first, "shimx64.efi")
            await fetched(second, "shimx64.efi")
            await first.site.flush("m1")
            await second.site.flush("m1")
            assert (await netboot(second)).loads == 2
            assert (await second.site.disable(ADDRESS, first.prefix())).code == 200
            await first.caught_up()
            assert await refused(first, "shimx64.efi") == 404


async def test_only_a_machine_with_its_own_uid_has_its_boot(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**REPAVE))
        before = world.prefix()
        await world.api.delete(MACHINES, "m1")
        await world.caught_up()
        assert await refused(world, "vmlinuz", prefix=before) == 404
        await world.machine(machine_body(**REPAVE))
        assert world.prefix() != before
        assert await refused(world, "vmlinuz", prefix=before) == 404


@pytest.mark.parametrize("window", ["WaitingLoader", "WaitingCloudInit"])
async def test_attestation_is_for_the_machine_of_the_prefix(tmp_path: Path, window: str) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(stage=window)
        assert (await world.site.attest(ADDRESS, world.prefix(), b'{"ekPub": ""}')).code == 200
        assert world.attestation.asked == [("m1", b'{"ekPub": ""}')]
        (operation,) = world.operations.all()
        assert world.attestation.boots == [(operation.metadata.uid, operation.name)]
