"""Third-party manifests."""

from __future__ import annotations

import asyncio
import io
import os
import ssl
import sys
import tarfile
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from unbounded.cli.deploy.bundle import LARGEST_TAR, MOST_FILES, UnusableBundle, load

ACCOUNT = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n"
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: machina-config}\n"
LIST = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: s}}\n"
KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n"


def folder(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.yaml").write_text(text)
    return path


def packed(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"../{name}.yaml")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("form", ["folder", "tar"])
async def test_objects_come_in_the_order_of_the_files_and_without_machinas_configuration(
    form: str, tmp_path: Path
) -> None:
    files = {"01": LIST, "02": f"---\n{ACCOUNT}---\n{CONFIG}", "kustomization": KUSTOMIZATION}
    place = folder(tmp_path / "f", **files) if form == "folder" else packed(tmp_path / "f.tar.gz", **files)
    assert [body["kind"] for body in await load(str(place))] == ["Service", "ServiceAccount"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("a: b", "expected objects with apiVersion, kind and metadata.name"),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}",
            "batch/v1 Job is not supported here, apply it with kubectl",
        ),
        ("", "has no manifests"),
    ],
    ids=["yaml", "object", "kind", "nothing"],
)
async def test_what_cannot_be_applied_is_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableBundle, match=words):
        await load(str(folder(tmp_path / "f", one=text)))


@pytest.mark.slow
async def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    bomb = packed(tmp_path / "bomb.tar.gz", **{str(number): "#" * 1024**2 for number in range(9)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(UnusableBundle, match="more than 8 MiB"):
        await load(str(bomb))
    with pytest.raises(UnusableBundle, match="more than 8 MiB"):
        await load(str(folder(tmp_path / "f", one="#" * (8 * 1024**2 + 1))))


@pytest.mark.slow
async def test_an_archive_that_unpacks_to_more_is_refused_whatever_its_files_are(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz") as tar:
        member = tarfile.TarInfo("README.md")
        member.size = LARGEST_TAR + 1
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(UnusableBundle, match="unpacks to more than 64 MiB"):
        await load(str(bomb))


async def test_a_folder_with_too_many_files_is_refused(tmp_path: Path) -> None:
    folder(tmp_path / "f", **{str(number): ACCOUNT for number in range(MOST_FILES + 1)})
    with pytest.raises(UnusableBundle, match=f"more than {MOST_FILES} files of manifests"):
        await load(str(tmp_path / "f"))


async def test_a_download_never_leaves_https(tmp_path: Path) -> None:
    """In a process of its own, which trusts the server's authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    content = packed(tmp_path / "a.tar.gz", a=ACCOUNT).read_bytes()

    reached: list[str] = []

    async def plain(request: web.BaseRequest) -> web.Response:
        reached.append(request.path)
        return web.Response(body=content)

    async def encrypted(request: web.BaseRequest) -> web.Response:
        if request.path == "/again":
            return web.Response(status=302, headers={"Location": "/a.tar.gz"})
        if request.path == "/later":
            return web.Response(status=302, headers={"Location": "/plain"})
        if request.path == "/plain":
            return web.Response(status=302, headers={"Location": str(insecure.make_url("/a.tar.gz"))})
        return web.Response(body=content)

    secure = RawTestServer(encrypted)
    await secure.start_server(ssl=context)
    async with secure, RawTestServer(plain) as insecure:
        refusal = "manifests come over https alone"
        cases = {"/a.tar.gz": "1 ServiceAccount", "/again": "1 ServiceAccount", "/plain": refusal, "/later": refusal}
        for path, says in cases.items():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _LOAD, f"https://127.0.0.1:{secure.port}{path}"),
                env={**os.environ, "SSL_CERT_FILE": str(tmp_path / "ca.crt")},
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            assert says in out.decode()
        assert reached == []


_LOAD = """
import asyncio, sys
from unbounded.cli.deploy.bundle import UnusableBundle, load
try:
    found = asyncio.run(load(sys.argv[1]))
    print(len(found), found[0]["kind"])
except UnusableBundle as error:
    print(error)
"""


async def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tar")
    with pytest.raises(UnusableBundle, match=r"not a tar\.gz file"):
        await load(str(tmp_path / "text"))
    with pytest.raises(UnusableBundle, match="no such folder or file"):
        await load(str(tmp_path / "missing"))
    with pytest.raises(UnusableBundle, match="manifests are only downloaded over https"):
        await load("http://example.com/machina.tar.gz")
    with pytest.raises(UnusableBundle, match=r"https://127\.0\.0\.1:1/x"):
        await load("https://127.0.0.1:1/x")
