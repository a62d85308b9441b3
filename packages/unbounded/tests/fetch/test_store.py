from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.fetch.layers import Built, files, image, index
from tests.fetch.registries import HASTY, Answer, Registry
from tests.support.waiting import eventually
from unbounded.api.failures import Rejected
from unbounded.fetch.failures import NotPublished, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.manifest import OCI_INDEX
from unbounded.fetch.reference import Platform
from unbounded.fetch.store import ImageStore, StoreLimits
from unbounded.fetch.web import Web
from unbounded.kube.logs import FIELDS

AMD64 = Platform("linux", "amd64")
SOON_S = 10.0


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with Registry().running() as running:
        yield running


@asynccontextmanager
async def store(folder: Path, limits: StoreLimits | None = None) -> AsyncIterator[ImageStore]:
    async with Web(patience=HASTY) as session, ImageStore(folder, session, only="disk", limits=limits) as opened:
        yield opened


def built(text: bytes = b"x") -> Built:
    return image([files({"disk/a": text, "etc/b": text}), files({"disk/c": text * 2})], compression="tar+zstd")


async def test_an_image_is_there_whole_under_its_digest(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1")
    async with store(tmp_path) as images:
        held = await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        assert held.digest == built().digest
        assert held.root == tmp_path / "images" / built().digest.file_name
        names = sorted(str(path.relative_to(held.root)) for path in held.root.rglob("*"))
        assert names == ["disk", "disk/a", "disk/c"]
        assert not list((tmp_path / "work").iterdir())
        assert images.pulls() == []


async def test_what_did_not_change_is_not_fetched_again(registry: Registry, tmp_path: Path) -> None:
    registry.add(built())
    registry.manifests["v1"] = (index({"linux/amd64": built()}), OCI_INDEX)
    async with store(tmp_path) as images:
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        asked = len(registry.seen)
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        assert [method for method, _, _ in registry.seen[asked:]] == ["HEAD"]
        await images.ensure(f"{registry.host}/lab/other@{built().digest}", AMD64)
        blobs = registry.count("blobs")
        await images.ensure(f"{registry.host}/lab/other@{built().digest}", AMD64)
        assert registry.count("blobs") == blobs == 2


async def test_a_moved_tag_brings_the_new_image(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(b"1"), "v1")
    async with store(tmp_path) as images:
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        registry.add(built(b"2"), "v1")
        held = await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        assert (held.root / "disk/a").read_bytes() == b"2"
        assert await images.collect({held.digest}) == [built(b"1").digest]


async def test_an_image_outlives_the_process_and_the_registry(tmp_path: Path) -> None:
    async with Registry().running() as registry:
        registry.add(built(), "v1")
        name = f"{registry.host}/lab/img:v1"
        async with store(tmp_path) as images:
            await images.ensure(name, AMD64)
    async with store(tmp_path) as images:
        held = await images.ensure(name, AMD64)
        assert held.digest == built().digest
        assert registry.host in held.stale
        assert images.find(name, AMD64) is not None
        assert images.find(name, Platform("linux", "arm64")) is None
        with pytest.raises(Unavailable):
            await images.ensure(f"{registry.host}/lab/other:v1", AMD64)


async def test_a_tag_that_is_gone_is_said_although_an_image_is_there(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1")
    async with store(tmp_path) as images:
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        del registry.manifests["v1"]
        with pytest.raises(NotPublished):
            await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        assert images.find(f"{registry.host}/lab/img:v1", AMD64) is not None


class Gate:
    """Holds every blob of a registry back until it is opened."""

    def __init__(self, registry: Registry) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        registry.dial = self.dial

    async def dial(self, request: web.BaseRequest) -> Answer:
        if "/blobs/" in request.path:
            self.waiting += 1
            await self.open.wait()
        return None


async def test_those_who_ask_for_one_digest_share_one_pull(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1", "v2")
    gate = Gate(registry)
    async with store(tmp_path) as images, asyncio.TaskGroup() as group:
        names = [f"{registry.host}/lab/img:{tag}" for tag in ("v1", "v2") * 10]
        tasks = [group.create_task(images.ensure(name, AMD64)) for name in names]
        await eventually(lambda: gate.waiting == 2 and registry.count("manifests") == 20)
        assert [progress.stage for progress in images.pulls()] == ["fetching"]
        gate.open.set()
        assert {held.digest for held in await asyncio.gather(*tasks)} == {built().digest}
        assert registry.count("blobs") == 2


async def test_pull_continues_while_any_caller_waits(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1")
    gate = Gate(registry)
    name = f"{registry.host}/lab/img:v1"
    async with store(tmp_path) as images:
        first, second = (asyncio.create_task(images.ensure(name, AMD64)) for _ in range(2))
        await eventually(lambda: gate.waiting == 2 and registry.count("manifests") == 2)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        assert len(images.pulls()) == 1
        second.cancel()
        await asyncio.sleep(0)
        third = asyncio.create_task(images.ensure(name, AMD64))
        await asyncio.wait({second})
        await eventually(lambda: gate.waiting == 4)
        gate.open.set()
        assert (await third).digest == built().digest


async def test_progress_is_counted_in_bytes_and_logged_now_and_then(
    registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    big = image([files({"disk/big": os.urandom(1 << 20)})])
    registry.add(big, "v1")
    stopped = asyncio.Event()

    async def dial(request: web.BaseRequest) -> Answer:
        if "/blobs/" not in request.path:
            return None
        body = registry.blobs[request.path.rpartition("/")[2]]
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        await stopped.wait()
        await response.write(body[len(body) // 2 :])
        return response

    registry.dial = dial
    async with store(tmp_path) as images, asyncio.TaskGroup() as group:
        task = group.create_task(images.ensure(f"{registry.host}/lab/img:v1", AMD64))
        await eventually(lambda: [progress.percent for progress in images.pulls()] in ([49], [50]))
        stopped.set()
        await task
    lines = [getattr(record, FIELDS) for record in caplog.records if record.getMessage() == "image pull continues"]
    assert [(line["image"], line["stage"]) for line in lines] == [(f"{registry.host}/lab/img:v1", "fetching")]
    assert 0 <= lines[0]["percent"] <= 100


async def test_a_crash_leaves_nothing_that_is_served_and_what_came_is_used(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1")
    cut = tmp_path / "images" / ".unfinished-0123456789abcdef"
    (cut / "disk").mkdir(parents=True)
    (cut / "disk" / "a").write_bytes(b"half")
    work = tmp_path / "work" / built().digest.file_name
    work.mkdir(parents=True)
    layer = next(iter(built().blobs))
    (work / layer.replace(":", "-")).write_bytes(built().blobs[layer])
    async with store(tmp_path) as images:
        assert not cut.exists()
        held = await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        assert (held.root / "disk/a").read_bytes() == b"x"
    assert registry.count("blobs") == 1


async def test_an_image_that_cannot_be_unpacked_leaves_no_image(registry: Registry, tmp_path: Path) -> None:
    registry.add(image([files({"disk/../../x": b""})]), "v1")
    registry.add(image([files({"etc/x": b""})]), "v2")
    async with store(tmp_path) as images:
        for tag, told in (("v1", "leads out of the tree"), ("v2", "no directory /disk")):
            with pytest.raises(UnusableContent, match=told):
                await images.ensure(f"{registry.host}/lab/img:{tag}", AMD64)
        assert not list((tmp_path / "images").iterdir())
        await images.collect(())
        assert not list((tmp_path / "work").iterdir())


@pytest.mark.slow
async def test_a_pull_that_is_ended_at_any_moment_stands_in_nobodys_way(registry: Registry, tmp_path: Path) -> None:
    async with store(tmp_path) as images:
        for number in range(60):
            image_ = built(b"%d" % number)
            registry.add(image_, f"v{number}")
            asked = f"{registry.host}/lab/img:v{number}"
            pull = asyncio.create_task(images.ensure(asked, AMD64))
            await asyncio.sleep(number / 2000)
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
            held = await images.ensure(asked, AMD64)
            assert (held.root / "disk/a").read_bytes() == b"%d" % number
        await images.collect([])
        assert not list((tmp_path / "images").iterdir())
        assert not list((tmp_path / "work").iterdir())


async def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    async with store(tmp_path):
        with pytest.raises(Rejected, match="another process uses this image store"):
            async with store(tmp_path):
                pass
    async with store(tmp_path):
        pass


@pytest.mark.slow
async def test_full_store_evicts_unused_images(registry: Registry, tmp_path: Path) -> None:
    names = []
    for number in range(4):
        registry.add(image([files({"disk/a": os.urandom(100_000)})]), f"v{number}")
        names.append(f"{registry.host}/lab/img:v{number}")
    async with store(tmp_path, StoreLimits(bytes=350_000)) as images:
        held = [await images.ensure(name, AMD64) for name in names[:3]]
        with pytest.raises(TooLarge, match="images in use leave"):
            await images.ensure(names[3], AMD64)
        assert await images.collect({one.digest for one in held}) == []
        with pytest.raises(TooLarge):
            await images.ensure(names[3], AMD64)
        assert await images.collect({held[0].digest, held[2].digest}, keep_bytes=1 << 20) == []
        await images.ensure(names[3], AMD64)
        assert [images.find(name, AMD64) is not None for name in names] == [True, False, True, True]


@pytest.mark.parametrize("what", ["images/DIGEST", "images", "."])
async def test_a_folder_that_disappears_is_noticed_and_the_image_fetched_again(
    registry: Registry, tmp_path: Path, what: str
) -> None:
    registry.add(built(), "v1")
    reference, root = f"{registry.host}/lab/img:v1", tmp_path / "store"
    async with store(root) as images:
        held = await images.ensure(reference, AMD64)
        shutil.rmtree(root / what.replace("DIGEST", built().digest.file_name))
        assert images.find(reference, AMD64) is None
        assert images.at(held.digest) is None
        assert await images.ensure(reference, AMD64) == held
        assert (held.root / "disk/a").read_bytes() == b"x"
        assert registry.count("blobs") == 4
        await images.collect({held.digest})
        with pytest.raises(Rejected, match="another process uses this image store"):
            async with store(root):
                pass
    async with store(root) as images:
        assert images.find(reference, AMD64) == held


async def test_an_image_that_disappeared_is_in_nobodys_way(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(b"1"), "v1")
    registry.add(built(b"2"), "v2")
    async with store(tmp_path) as images:
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
        shutil.rmtree(tmp_path / "images")
        assert await images.collect(set()) == []
        assert (await images.ensure(f"{registry.host}/lab/img:v2", AMD64)).root.exists()


async def test_lost_references_are_looked_up_again(registry: Registry, tmp_path: Path) -> None:
    registry.add(built(), "v1")
    async with store(tmp_path) as images:
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
    (tmp_path / "references.json").write_bytes(b"[{")
    blobs = registry.count("blobs")
    async with store(tmp_path) as images:
        assert images.find(f"{registry.host}/lab/img:v1", AMD64) is None
        await images.ensure(f"{registry.host}/lab/img:v1", AMD64)
    assert registry.count("blobs") == blobs
