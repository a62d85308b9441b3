"""Images of Machines: pulled, resolved again, reported, kept through outages and restarts, and removed."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from aiohttp import web

from tests.explain.staging import commands
from tests.fetch.layers import Built, files, image
from tests.fetch.registries import HASTY, Registry, docker_config, docker_registry, push
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.explain.chain import explain
from unbounded.explain.links import ExplainLink, Topic
from unbounded.fetch.store import ImageStore
from unbounded.fetch.web import Web
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.http.boot_service import NotReadyYet
from unbounded.metalman.images.conditions import ImageConditions
from unbounded.metalman.images.image_controller import ImageController
from unbounded.metalman.images.metadata import FOLDER
from unbounded.metalman.images.model import ImageIntervals, NetbootImageDefaults
from unbounded.metalman.netboot.model import BootImages

SWIFT = ImageIntervals(
    resolve_s=0.05,
    after_failure=Backoff(0.02, 0.05),
    after_refusal=Backoff(0.02, 0.05),
    collect_after_s=0.05,
    check_s=0.05,
    keep_bytes=0,
)
ANOTHER_IMAGE = """kubectl patch mach m1 --type=merge -p '{"spec": {"pxe": {"image": "IMAGE"}}}'"""
METADATA = b"dhcpBootImageName: shimx64.efi\nbootFiles: {ipxe: boot.ipxe}\n"


def netboot(mark: bytes = b"1", **more: bytes) -> Built:
    base = {"shimx64.efi": mark, "boot.ipxe.tmpl": b"#!ipxe", "metadata.yaml": METADATA, "disk.img.gz": b"disk " + mark}
    contents = {f"disk/{name}": content for name, content in (base | more).items()}
    return image([files({name: content for name, content in contents.items() if content != b"-"})])


class Lab:
    """A registry of images, Machines in memory, and one replica with a cache."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder = folder
        self.host = host
        self.api = MemoryApi()

    @asynccontextmanager
    async def replica(self, *, pace: ImageIntervals = SWIFT, **given: Any) -> AsyncIterator[ImageController]:
        given = {"site": None} | given
        async with Web(patience=HASTY) as web_, ImageStore(self.folder / "store", web_, only=FOLDER) as store:
            self.machines = Cache(self.api, MACHINES)
            self.store = store
            keeper = ImageController(self.api, self.machines, store, pace=pace, **given)
            conditions = ImageConditions(self.api, self.machines, keeper, site=given["site"], progress_s=0.02)
            tasks = [asyncio.create_task(one) for one in (self.machines.run(), keeper.run(), conditions.run())]
            await self.machines.synced.wait()
            try:
                yield keeper
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended

    async def machine(self, name: str = "m1", image: str = "lab/img:v1", **pxe: Any) -> None:
        spec = {"pxe": {"image": f"{self.host}/{image}", **pxe}}
        await self.api.create(MACHINES, {"metadata": {"name": name}, "spec": spec})

    async def of(self, keeper: ImageController, name: str = "m1") -> BootImages | NotReadyYet:
        return keeper.of(await self.api.get(MACHINES, name))

    async def served(self, keeper: ImageController, name: str = "m1", *, mark: bytes | None = None) -> BootImages:
        async def there() -> BootImages | None:
            found = await self.of(keeper, name)
            if not isinstance(found, BootImages) or mark not in (
                None,
                (found.netboot.root / "shimx64.efi").read_bytes(),
            ):
                return None
            return found

        found: BootImages = await eventually(there)
        return found

    async def sees_a_boot(self, name: str = "m1") -> bool:
        """Return whether the replica knows the API's state of a boot."""
        found = self.machines.get(name)
        return found is not None and found.status.netboot is not None

    async def says(self, reason: str, text: str = "", name: str = "m1") -> str:
        """Wait until the condition has this reason; return its message."""

        async def said() -> str | None:
            found = await self.condition(name)
            return found[2] if found and found[1] == reason and text in found[2] else None

        found: str = await eventually(said)
        return found

    async def why(self) -> ExplainLink:
        """Return the explanation of `why machine/m1`."""
        (link,) = (await explain(self.api, Topic.MACHINE, "m1")).links
        return link

    async def condition(self, name: str = "m1") -> tuple[str, str, str] | None:
        conditions = (await self.api.get(MACHINES, name)).status.conditions
        found = (one for one in conditions if one.type == "NetbootImageReady")
        return next(((one.status, one.reason, one.message) for one in found), None)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with Registry().running() as running:
        yield running


@pytest.fixture
def lab(tmp_path: Path, registry: Registry) -> Lab:
    return Lab(tmp_path, registry.host)


async def test_a_machines_image_is_pulled_served_and_told_of(lab: Lab, registry: Registry) -> None:
    built = netboot()
    registry.add(built, "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        served = await lab.served(keeper)
        assert served.netboot == served.disk
        assert served.netboot.digest == str(built.digest)
        assert served.loaders == {Loader.X64: "shimx64.efi", Loader.IPXE: "boot.ipxe"}
        assert served.disk_sha256 == hashlib.sha256(b"disk 1").hexdigest()
        assert await lab.says("Pulled") == f"image {lab.host}/lab/img:v1 for linux/amd64 is {built.digest}"
        condition = await lab.condition()
        assert condition is not None
        assert condition[0] == "True"


@pytest.mark.slow
async def test_two_images_make_one_boot(lab: Lab, registry: Registry) -> None:
    boot, disk = netboot(**{"disk.img.gz": b"-"}), image([files({"disk/disk.img.zst": b"z"})])
    registry.add(boot, "net")
    registry.add(disk, "disk")
    async with lab.replica(defaults=NetbootImageDefaults(f"{lab.host}/lab/img:net")) as keeper:
        await lab.machine("named", "lab/img:disk", netbootImage=f"{lab.host}/lab/img:net")
        await lab.machine("default", "lab/img:disk")
        for name in ("named", "default"):
            served = await lab.served(keeper, name)
            assert (served.netboot.digest, served.disk.digest) == (str(boot.digest), str(disk.digest))
            assert served.disk_sha256 == hashlib.sha256(b"z").hexdigest()
            text = await lab.says("Pulled", name=name)
            assert f"lab/img:net for linux/amd64 is {boot.digest}; image {lab.host}/lab/img:disk" in text


async def test_a_host_in_stock_boots_the_installer_alone(lab: Lab, registry: Registry) -> None:
    boot = netboot(**{"disk.img.gz": b"-"})
    registry.add(boot, "net")
    async with lab.replica(defaults=NetbootImageDefaults(f"{lab.host}/lab/img:net")) as keeper:
        await lab.api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {"pxe": {}}})
        served = await lab.served(keeper)
        assert served.netboot == served.disk
        assert (served.disk_sha256, served.disk_reference) == ("", "")
        assert await lab.says("Pulled") == f"image {lab.host}/lab/img:net for linux/amd64 is {boot.digest}"


async def test_a_host_without_any_image_says_what_is_missing(lab: Lab, registry: Registry) -> None:
    async with lab.replica() as keeper:
        await lab.api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {"pxe": {}}})
        assert "spec.pxe has neither image nor netbootImage" in await lab.says("NoImage")
        assert isinstance(await lab.of(keeper), NotReadyYet)
        registry.add(netboot(), "v1")
        await lab.api.patch(MACHINES, "m1", {"spec": {"pxe": {"image": f"{lab.host}/lab/img:v1"}}})
        await lab.says("Pulled")


async def test_the_condition_names_the_generation_whose_images_it_speaks_of(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    async with lab.replica():
        await lab.machine()
        await lab.says("Pulled")
        changed = await lab.api.patch(MACHINES, "m1", {"spec": {"operations": {"repaveCounter": 1}}})

        async def followed() -> bool:
            machine = await lab.api.get(MACHINES, "m1")
            return [one.observed_generation for one in machine.status.conditions] == [changed.metadata.generation]

        assert await eventually(followed)


async def test_an_idle_image_costs_no_writes(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        await lab.served(keeper)
        await lab.says("Pulled")
        writes, looks = lab.api.writes, registry.count("/manifests/v1")

        async def looked() -> bool:
            return registry.count("/manifests/v1") > looks + 5

        await eventually(looked)
        assert lab.api.writes == writes


@pytest.mark.slow
async def test_a_tag_that_moves_is_followed_and_the_old_image_let_go(lab: Lab, registry: Registry) -> None:
    old, new = netboot(b"1"), netboot(b"2")
    registry.add(old, "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        before = await lab.served(keeper, mark=b"1")
        registry.add(new, "v1")
        await lab.served(keeper, mark=b"2")
        await lab.says("Pulled", str(new.digest))

        async def gone() -> bool:
            return not before.netboot.root.exists()

        await eventually(gone)


@pytest.mark.slow
async def test_a_boot_under_way_keeps_its_images_when_a_tag_moves(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(b"1"), "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        await lab.served(keeper, mark=b"1")
        await status(lab, "KernelFetched")
        await eventually(lab.sees_a_boot)  # what a replica does not know of yet it does not keep
        begun = await lab.served(keeper, mark=b"1")
        registry.add(netboot(b"2"), "v1")
        await lab.says("Pulled", str(netboot(b"2").digest))
        await asyncio.sleep(0.2)  # longer than what is unused is left
        assert await lab.of(keeper) == begun
        assert (begun.netboot.root / "shimx64.efi").read_bytes() == b"1"
        await status(lab, "ImageWritten")
        await lab.served(keeper, mark=b"2")


async def status(lab: Lab, milestone: str, *, wanted: str = "u-1", digest: str | None = None) -> None:
    """A boot that came to a milestone, and the operation that is under way."""
    slot = {"uid": wanted, "name": "r", "kind": "HostReplace", "executor": "metalman/", "since": "2026-01-01T00:00:00Z"}
    seen = {"boot": "u-1", "milestone": milestone, "imageDigest": digest}
    patch = {"status": {"netboot": seen, "activeOperation": slot}}
    await lab.api.patch(MACHINES, "m1", patch, subresource="status")


@pytest.mark.slow
async def test_a_boot_keeps_its_image_at_another_replica_and_after_a_restart(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(b"1"), "v1")
    await lab.machine()
    async with lab.replica(pace=replace(SWIFT, keep_bytes=1 << 30)) as keeper:
        begun = await lab.served(keeper, mark=b"1")
        registry.add(netboot(b"2"), "v1")
        await lab.served(keeper, mark=b"2")
    await status(lab, "KernelFetched", digest=begun.disk.digest)
    resumed = replace(begun, disk_reference="")  # the status has it
    async with lab.replica() as keeper:
        assert await lab.served(keeper, mark=b"1") == resumed
        await lab.says("Pulled", str(netboot(b"2").digest))
        await asyncio.sleep(0.2)  # longer than what is unused is left
        assert await lab.served(keeper, mark=b"1") == resumed
        await status(lab, "KernelFetched", digest=begun.disk.digest, wanted="u-2")  # another operation has begun since
        await lab.served(keeper, mark=b"2")

        async def gone() -> bool:
            return not begun.disk.root.exists()

        await eventually(gone)


async def test_boot_with_a_vanished_image_gets_the_present_one(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(b"2"), "v1")
    await lab.machine()
    await status(lab, "KernelFetched", digest=str(netboot(b"1").digest))
    async with lab.replica() as keeper:
        await lab.served(keeper, mark=b"2")
    await status(lab, "KernelFetched", digest="nonsense")
    async with lab.replica() as keeper:
        await lab.served(keeper, mark=b"2")


@pytest.mark.slow
async def test_what_was_pulled_is_served_after_a_restart_without_the_registry(lab: Lab, registry: Registry) -> None:
    built = netboot()
    registry.add(built, "v1")
    await lab.machine()
    async with lab.replica() as keeper:
        await lab.served(keeper)

    attempts = 0

    async def down(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal attempts
        attempts += 1
        return web.Response(status=503)

    registry.dial = down
    async with lab.replica() as keeper:
        await lab.served(keeper, mark=b"1")
        text = await lab.says("Pulled", "registry does not answer; using its last answer")
        assert str(built.digest) in text
        writes, more = lab.api.writes, attempts + 3
        await eventually(lambda: attempts >= more)
        assert lab.api.writes == writes
        registry.dial = None
        registry.add(netboot(b"2"), "v1")
        await lab.served(keeper, mark=b"2")


async def test_a_registry_that_is_down_is_said_and_asked_again(lab: Lab, registry: Registry) -> None:
    async def down(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    registry.dial = down
    registry.add(netboot(), "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        await lab.says("PullFailed", "503")
        said = await lab.of(keeper)
        assert isinstance(said, NotReadyYet)
        assert "503" in said.text
        answer = await lab.why()
        assert "503" in answer.what
        assert answer.next_step == "metalman pulls it again and again"
        assert commands([answer]) == [ANOTHER_IMAGE]
        registry.dial = None
        await lab.served(keeper)
        await lab.says("Pulled")


UNUSABLE = [
    (image([files({"other/x": b"x"})]), "disk"),
    (netboot(**{"metadata.yaml": b"-"}), "disk/metadata.yaml is missing; it names the boot files"),
    (netboot(**{"metadata.yaml": b"dhcpBootImageName: none.efi"}), "dhcpBootImageName: the image has no disk/none.efi"),
    (
        netboot(**{"metadata.yaml": b"dhcpBootImageName: shimx64.efi\ndiskImageSHA256: x"}),
        "diskImageSHA256: must be 64 hex",
    ),
]


@pytest.mark.parametrize("what", ["images", "."])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_cache_folder_that_disappears_is_noticed_said_and_filled_again(
    lab: Lab, registry: Registry, what: str, *, asked: bool
) -> None:
    """A former fault: it was served as 404 until the next restart, with the condition Pulled."""
    registry.add(netboot(), "v1")
    await lab.machine(image=f"lab/img@{netboot().digest}")  # a digest is never resolved again
    async with lab.replica() as keeper:
        before = await lab.served(keeper)
        await lab.says("Pulled")
        gate = asyncio.Event()

        async def dial(request: web.BaseRequest) -> None:
            await gate.wait()

        registry.dial = dial
        shutil.rmtree(lab.folder / "store" / what)
        if asked:
            answer = await lab.of(keeper)
            assert isinstance(answer, NotReadyYet)
            assert "its files are missing from the cache" in answer.text
        told = await lab.says("PullFailed", "its files are missing from the cache")
        assert told.endswith("its files are missing from the cache; metalman fetches them again")
        gate.set()
        assert await lab.served(keeper, mark=b"1") == before
        await lab.says("Pulled")


async def test_a_boot_goes_on_with_the_image_that_is_fetched_again(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    await lab.machine()
    async with lab.replica() as keeper:
        before = await lab.served(keeper)
        await status(lab, "KernelFetched", digest=before.disk.digest)
        await eventually(lab.sees_a_boot)
        assert await lab.of(keeper) == before
        shutil.rmtree(lab.folder / "store" / "images")
        assert isinstance(await lab.of(keeper), NotReadyYet)
        assert await lab.served(keeper, mark=b"1") == before


@pytest.mark.parametrize(("built", "said"), UNUSABLE, ids=["no disk", "no metadata", "no file", "no digest"])
async def test_unusable_image_is_reported_until_a_new_push(
    lab: Lab, registry: Registry, built: Built, said: str
) -> None:
    registry.add(built, "v1")
    async with lab.replica() as keeper:
        await lab.machine()
        told = await lab.says("UnusableImage", said)
        assert "metalman still serves" not in told
        assert isinstance(await lab.of(keeper), NotReadyYet)
        answer = await lab.why()
        assert said in answer.what
        assert commands([answer]) == [ANOTHER_IMAGE]
        registry.add(netboot(), "v1")
        await lab.served(keeper)
        await lab.says("Pulled")


async def test_image_without_the_loader_of_virtual_media_is_unusable_for_its_machines(
    lab: Lab, registry: Registry
) -> None:
    arm64 = b"bootFiles: {arm64: shimx64.efi}\n"
    registry.add(netboot(**{"metadata.yaml": arm64}), "v1")
    async with lab.replica():
        await lab.machine("m1", bootMode="VirtualMedia")
        await lab.machine("m2", bootMode="VirtualMedia", architecture="arm64")
        await lab.machine("m3")
        told = await lab.says(
            "UnusableImage", "names no loader for amd64 UEFI (dhcpBootImageName in its metadata.yaml)"
        )
        assert "spec.pxe.bootMode VirtualMedia" in told
        await lab.says("Pulled", name="m2")
        await lab.says("Pulled", name="m3")
        await lab.api.patch(MACHINES, "m1", {"spec": {"pxe": {"architecture": "arm64"}}})
        await lab.says("Pulled")


async def test_a_disk_image_is_to_hold_a_disk(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "net")
    registry.add(image([files({"disk/readme": b"x"})]), "disk")
    async with lab.replica():
        await lab.machine("m1", "lab/img:disk", netbootImage=f"{lab.host}/lab/img:net")
        await lab.says("UnusableImage", "it has neither disk/disk.img.zst nor disk/disk.img.gz")


async def test_a_reference_that_is_none_and_a_tag_that_is_missing(lab: Lab, registry: Registry) -> None:
    async with lab.replica():
        await lab.machine("odd", "lab/img:%")
        await lab.machine("missing", "lab/img:v9")
        await lab.says("UnusableImage", "'%' is not a tag", name="odd")
        await lab.says("PullFailed", "MANIFEST_UNKNOWN", name="missing")


async def test_a_pull_tells_how_far_it_is(lab: Lab, registry: Registry) -> None:
    big = netboot(filling=bytes(range(256)) * 4096)
    registry.add(big, "v1")
    go_on = asyncio.Event()
    layer = next(iter(big.blobs))

    async def slow(request: web.BaseRequest) -> web.StreamResponse | None:
        if "/blobs/" not in request.path:
            return None
        content = registry.blobs[layer]
        response = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        await go_on.wait()
        await response.write(content[len(content) // 2 :])
        return response

    registry.dial = slow
    async with lab.replica() as keeper:
        await lab.machine()
        text = await lab.says("Pulling", "fetching, ")
        percent = int(text.rpartition(", ")[2].removesuffix(" %"))
        assert 0 <= percent < 100
        said = await lab.of(keeper)
        assert isinstance(said, NotReadyYet)
        assert "fetching" in said.text
        answer = await lab.why()
        assert "fetching, " in answer.what
        assert (answer.next_step, answer.fixes) == ("the host boots from it as soon as it is available", ())
        go_on.set()
        registry.dial = None
        await lab.served(keeper)
        await lab.says("Pulled")


async def test_a_pull_that_nobody_wants_any_more_is_ended(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    waiting = asyncio.Event()

    async def stuck(request: web.BaseRequest) -> web.StreamResponse | None:
        if "/blobs/" in request.path:
            waiting.set()
            await asyncio.sleep(60)
        return None

    registry.dial = stuck
    async with lab.replica():
        await lab.machine()
        await waiting.wait()
        assert lab.store.pulls()
        await lab.api.delete(MACHINES, "m1")

        async def ended() -> bool:
            return not lab.store.pulls()

        await eventually(ended)


async def test_images_are_pulled_only_for_network_booted_machines_of_the_site(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    async with lab.replica(site="a") as keeper:
        for name, site in (("ours", "a"), ("theirs", "b")):
            spec = {"pxe": {"image": f"{lab.host}/lab/img:v1"}}
            labels = {"unbounded-cloud.io/site": site}
            await lab.api.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        await lab.says("Pulled", name="ours")
        assert await lab.condition("theirs") is None
        await lab.api.patch(MACHINES, "ours", {"spec": {"pxe": None}})

        async def gone() -> bool:
            return await lab.condition("ours") is None and isinstance(await lab.of(keeper, "ours"), NotReadyYet)

        await eventually(gone)

        async def empty() -> bool:
            return not list((lab.folder / "store" / "images").iterdir())

        await eventually(empty)


async def test_an_unused_image_stays_while_there_is_room(lab: Lab, registry: Registry) -> None:
    registry.add(netboot(), "v1")
    async with lab.replica(pace=replace(SWIFT, keep_bytes=1 << 30)) as keeper:
        await lab.machine()
        root = (await lab.served(keeper)).netboot.root
        await lab.api.delete(MACHINES, "m1")
        await asyncio.sleep(0.3)
        assert root.exists()
        pulls = registry.count("/blobs/")
        await lab.machine()
        await lab.served(keeper)
        assert registry.count("/blobs/") == pulls


@pytest.mark.slow
async def test_pull_secrets_by_name_against_a_real_registry(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"calvin", bcrypt.gensalt(4)).decode()
    async with docker_registry(tmp_path, htpasswd=f"admin:{hashed}\n") as host:
        lab = Lab(tmp_path, host)
        await push(host, "lab/img", "v1", netboot(), user="admin", password="calvin")
        async with lab.replica() as keeper:
            await lab.machine(pullSecretRef={"name": "pull", "namespace": "unbounded-kube"})
            where = "Secret unbounded-kube/pull (spec.pxe.pullSecretRef)"
            await lab.says("PullFailed", f"{where} does not exist")
            answer = await lab.why()
            assert f"{where} does not exist" in answer.what
            write, another = commands([answer])
            assert write.startswith("kubectl -n unbounded-kube create secret docker-registry pull --docker-server=")
            assert another == ANOTHER_IMAGE
            secret = {"metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson", "data": {"x": ""}}
            await lab.api.create(SECRETS, secret, namespace="unbounded-kube")
            await lab.says("PullFailed", f"{where} has no key .dockerconfigjson")
            for password in ("hobbes", "calvin"):
                config = b64encode(docker_config({host: {"username": "admin", "password": password}})).decode()
                data = {"data": {".dockerconfigjson": config}}
                await lab.api.patch(SECRETS, "pull", data, namespace="unbounded-kube")
                if password == "hobbes":
                    await lab.says("PullFailed", "does not let 'admin' read lab/img")
            await lab.served(keeper)
            found = await lab.api.get(MACHINES, "m1")
            assert password not in str(found)


@pytest.mark.slow
async def test_a_real_registry_may_go_away_and_come_back_with_another_image(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        registry = AsyncExitStack()
        host = await registry.enter_async_context(docker_registry(tmp_path))
        lab = Lab(tmp_path, host)
        await push(host, "lab/img", "v1", netboot(b"1"))
        keeper = await stack.enter_async_context(lab.replica())
        await lab.machine()
        await lab.served(keeper, mark=b"1")
        await push(host, "lab/img", "v1", netboot(b"2"))
        await lab.served(keeper, mark=b"2")
        await registry.aclose()
        await lab.says("Pulled", "registry does not answer")
        await lab.served(keeper, mark=b"2")
