"""Against Debian's docker-registry: a server of the distribution API that others wrote."""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp
import bcrypt
import pytest

from tests.fetch.layers import files, image, index, tar
from tests.fetch.registries import docker_config, docker_registry, push, push_manifest
from unbounded.fetch.failures import Denied, NotPublished
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.manifest import OCI_INDEX, Blob
from unbounded.fetch.reference import Platform, Reference
from unbounded.fetch.registry import RegistryClient
from unbounded.fetch.store import ImageStore
from unbounded.fetch.web import Web

pytestmark = pytest.mark.slow
AMD64 = Platform("linux", "amd64")


async def test_images_of_all_kinds_are_pulled_and_outlive_the_registry(tmp_path: Path) -> None:
    big = os.urandom(5 << 20)
    layers = [files({"disk/big": big, "disk/old": b"x"}), files({"disk/.wh.old": b"", "disk/new": b"y"})]
    zstd, docker = image(layers, compression="tar+zstd"), image([*layers, tar()], docker=True)
    async with Web() as session, ImageStore(tmp_path / "store", session, only="disk") as store:
        async with docker_registry(tmp_path) as host:
            await push(host, "lab/img", "amd64", zstd)
            await push(host, "lab/img", "arm64", docker)
            body = index({"linux/amd64": zstd, "linux/arm64/v8": docker})
            async with aiohttp.ClientSession() as pushing:
                await push_manifest(pushing, f"http://{host}/v2/lab/img", "v1", body, OCI_INDEX)
            for platform, wanted in ((AMD64, zstd), (Platform("linux", "arm64"), docker)):
                held = await store.ensure(f"{host}/lab/img:v1", platform)
                assert held.digest == wanted.digest
                assert (held.root / "disk/big").read_bytes() == big
                assert sorted(path.name for path in (held.root / "disk").iterdir()) == ["big", "new"]
            with pytest.raises(NotPublished, match="MANIFEST_UNKNOWN"):
                await store.ensure(f"{host}/lab/img:v2", AMD64)
            assert not (await store.ensure(f"{host}/lab/img:v1", AMD64)).stale
        assert (await store.ensure(f"{host}/lab/img:v1", AMD64)).stale


async def test_a_blob_is_resumed_in_its_middle(tmp_path: Path) -> None:
    built = image([files({"disk/big": os.urandom(1 << 20)})])
    async with docker_registry(tmp_path) as host, Web() as session:
        await push(host, "lab/img", "v1", built)
        registry = RegistryClient(session, Reference.parse(f"{host}/lab/img:v1"))
        blob: Blob = (await registry.resolve(AMD64)).image.layers[0]
        content = built.blobs[str(blob.digest)]
        (tmp_path / "blob.partial").write_bytes(content[:700_000])
        told: list[int] = []
        await registry.fetch(blob, tmp_path / "blob", limit=2 << 20, on_bytes=lambda done, _: told.append(done))
        assert told[0] > 700_000
        assert (tmp_path / "blob").read_bytes() == content


async def test_a_pull_secret_opens_what_is_closed(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"calvin", bcrypt.gensalt(4)).decode()
    async with docker_registry(tmp_path, htpasswd=f"admin:{hashed}\n") as host, Web() as session:
        await push(host, "lab/img", "v1", image([files({"disk/a": b"x"})]), user="admin", password="calvin")
        right, wrong = (
            RegistryLogins.from_secret(docker_config({host: {"username": "admin", "password": password}}))
            for password in ("calvin", "hobbes")
        )
        reference = Reference.parse(f"{host}/lab/img:v1")
        assert (await RegistryClient(session, reference, right).resolve(AMD64)).image.size
        with pytest.raises(Denied, match="does not let 'admin' read lab/img"):
            await RegistryClient(session, reference, wrong).resolve(AMD64)
        with pytest.raises(Denied, match="none is configured for it: set a pull secret"):
            await RegistryClient(session, reference).resolve(AMD64)
