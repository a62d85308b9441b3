"""A mirror of the agent's downloads, at the paths of their projects, with dials for faults.

containerd, runc and the CNI plugins are Debian's, the sandbox image is our own. Debian has no kubelet and no crictl:
these, kubectl and kube-proxy are stand-ins that report it. To use a real kubelet, set another URL for Kubernetes in the
agent's configuration: UNBOUNDED_TEST_KUBERNETES_URL, such as https://dl.k8s.io.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import ssl
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import trustme
from aiohttp import web

from tests.support.hosts.tools import AgentTools
from tests.support.paths import ROOT
from unbounded.agent import node_spec
from unbounded.agent.artifact_sources import SANDBOX

CONTAINERD: Final = "1.6.20"
RUNC: Final = "1.1.5"
CNI: Final = "1.1.1"
ARCH: Final = "amd64"
_KUBELET: Final = Path(__file__).with_name("kubelet_standin")
_CRICTL: Final = Path(__file__).with_name("crictl_standin.sh")
_SANDBOX: Final = ROOT / "images" / "sandbox" / "build"
_PROGRAM: Final = "#!/bin/sh\n# A stand-in for {name}\necho '{says}'\n"
_START_S: Final = 30.0
_CHUNK: Final = 64 * 1024
T = TypeVar("T")


def kubelet_program(version: str, dials: str = "") -> bytes:
    """Return the stand-in for kubelet as one file that python3 runs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for module in sorted(_KUBELET.glob("*.py")):
            text = module.read_text()
            if module.name == "given.py":
                text = text.replace('VERSION = "0.0.0"', f'VERSION = "{version}"', 1)
                text = text.replace('DIALS = ""', f'DIALS = "{dials}"', 1)
            archive.writestr(zipfile.ZipInfo(f"{_KUBELET.name}/{module.name}"), text)
        main = "import sys\nfrom kubelet_standin.program import main\nsys.exit(main())\n"
        archive.writestr(zipfile.ZipInfo("__main__.py"), main)
    return b"#!/usr/bin/python3\n" + packed.getvalue()


@dataclass(frozen=True)
class Dial:
    """The misbehaviour of a path.

    Args:
        bytes_per_s: the maximum rate; None for no limit.
        cut_after: the connection breaks after so many bytes of each answer.
        cuts: how many answers are cut; later ones are whole. None for all.
        status: in place of an answer.
        wrong: the content differs from its sha256, and has the same length.
        hangs: there is no answer.
    """

    bytes_per_s: int | None = None
    cut_after: int | None = None
    cuts: int | None = None
    status: int | None = None
    wrong: bool = False
    hangs: bool = False


@dataclass(frozen=True)
class Asked:
    """A request; `begins` is the start of a requested range."""

    path: str
    begins: int = 0


class Mirror:
    """The served artifacts. Fields may be changed while it runs.

    Args:
        base: http://address:port; base_tls: https, with a certificate of `ca`.
    """

    def __init__(self, tools: AgentTools) -> None:
        self.base = self.base_tls = ""
        self.ca = trustme.CA()
        self.dials: dict[str, Dial] = {}
        self.asked: list[Asked] = []
        self._files: dict[str, bytes | Path] = {}
        self._cuts: dict[str, int] = {}
        self._parts = tools.artifacts
        self._add_versions(CONTAINERD, RUNC, CNI)
        self.add(f"/sandbox/v{SANDBOX}/sandbox-{ARCH}.tar", sandbox_image())

    def add(self, path: str, content: bytes | Path, *, checksum: str = ".sha256") -> str:
        """Serve a file, and its sha256 beside it; its URL."""
        data = content if isinstance(content, bytes) else content.read_bytes()
        self._files[path] = content
        if checksum:
            name = path.rpartition("/")[2]
            self._files[path + checksum] = f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()
        return self.base + path

    def add_kubernetes(self, version: str, *, dials: str = "") -> None:
        """Serve a version of Kubernetes.

        Args:
            dials: of the stand-in for kubelet, as kubelet_standin has them.
        """
        folder = f"/v{version}/bin/linux/{ARCH}"
        self.add(f"{folder}/kubelet", kubelet_program(version, dials))
        for name, says in (("kubectl", f"Client Version: v{version}"), ("kube-proxy", f"Kubernetes v{version}")):
            self.add(f"{folder}/{name}", _PROGRAM.format(name=name, says=says).encode())
        crictl = ".".join([*version.split(".")[:2], "0"])
        script = _CRICTL.read_text().replace("version VERSION", f"version v{crictl}").encode()
        self.add(f"/v{crictl}/crictl-v{crictl}-linux-{ARCH}.tar.gz", packed({"crictl": script}))

    def downloads(self) -> dict[str, dict[str, str]]:
        """`Downloads` of the agent's configuration: from here, but for a real Kubernetes where one is named."""
        bases = {
            name: {"BaseURL": self.base} for name in ("Kubernetes", "Containerd", "Runc", "CNI", "Crictl", "Sandbox")
        }
        if real := os.environ.get("UNBOUNDED_TEST_KUBERNETES_URL"):
            bases["Kubernetes"] = {"BaseURL": real}
        return bases

    def versions(self) -> dict[str, Any]:
        """`CRI` and `CNI` of the agent's configuration: what there is."""
        return {
            "CRI": {"Containerd": {"Version": CONTAINERD}, "Runc": {"Version": RUNC}},
            "CNI": {"PluginVersion": CNI},
        }

    def paths(self) -> list[str]:
        return sorted(self._files)

    def path_of(self, part: str) -> str:
        """The path of an artifact (not of its sha256) that has this in its name."""
        found = [path for path in self.paths() if part in path.rpartition("/")[2] and ".sha256" not in path]
        assert len(found) == 1, found
        return found[0]

    def add_default_versions(self) -> None:
        """Serve the same containerd, runc and CNI plugins at the paths of the agent's default versions, too."""
        self._add_versions(node_spec.CONTAINERD, node_spec.RUNC, node_spec.CNI)

    def _add_versions(self, containerd: str, runc: str, cni: str) -> None:
        parts = self._parts
        name = f"containerd-{containerd}-linux-{ARCH}.tar.gz"
        self.add(f"/v{containerd}/{name}", parts / "containerd.tar.gz", checksum=".sha256sum")
        self.add(f"/v{runc}/runc.{ARCH}", parts / "runc", checksum="")
        digest = hashlib.sha256((parts / "runc").read_bytes()).hexdigest()
        self._files[f"/v{runc}/runc.sha256sum"] = f"{digest}  runc.{ARCH}\n".encode()
        self.add(f"/v{cni}/cni-plugins-linux-{ARCH}-v{cni}.tgz", parts / "cni.tgz")

    # Serving

    async def handle(self, request: web.Request) -> web.StreamResponse:
        content = self._files.get(request.path)
        dial = self.dials.get(request.path, Dial())
        begins = _begins(request)
        self.asked.append(Asked(request.path, begins))
        if dial.hangs:
            await asyncio.sleep(3600)
        if content is None or dial.status is not None:
            return web.Response(status=dial.status or 404, text="not here")
        cut = dial.cut_after is not None and self._may_cut(request.path, dial)
        if isinstance(content, Path) and not cut and not dial.wrong and dial.bytes_per_s is None:
            return web.FileResponse(content)
        data = content.read_bytes() if isinstance(content, Path) else content
        if dial.wrong:
            data = bytes(byte ^ 0xFF for byte in data[:1024]) + data[1024:]
        return await self._send(request, data, begins, dial, cut=cut)

    def _may_cut(self, path: str, dial: Dial) -> bool:
        self._cuts[path] = self._cuts.get(path, 0) + 1
        return dial.cuts is None or self._cuts[path] <= dial.cuts

    async def _send(
        self, request: web.Request, data: bytes, begins: int, dial: Dial, *, cut: bool
    ) -> web.StreamResponse:
        answer = web.StreamResponse(status=206 if begins else 200)
        answer.content_length = len(data) - begins
        answer.headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        answer.headers["Accept-Ranges"] = "bytes"
        if begins:
            answer.headers["Content-Range"] = f"bytes {begins}-{len(data) - 1}/{len(data)}"
        await answer.prepare(request)
        end = begins + dial.cut_after if cut and dial.cut_after is not None else len(data)
        for start in range(begins, min(end, len(data)), _CHUNK):
            chunk = data[start : min(start + _CHUNK, end)]
            await answer.write(chunk)
            if dial.bytes_per_s is not None:
                await asyncio.sleep(len(chunk) / dial.bytes_per_s)
        if cut and request.transport is not None:
            request.transport.abort()
        return answer


def _begins(request: web.Request) -> int:
    try:
        return request.http_range.start or 0
    except ValueError:
        return 0


@cache
def sandbox_image() -> bytes:
    """The sandbox image of this project, as an archive."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(_SANDBOX), "--arch", ARCH, folder], check=True, timeout=_START_S)
        return (Path(folder) / f"sandbox-{ARCH}.tar").read_bytes()


def packed(files: Mapping[str, bytes | Path], *, mode: int = 0o755) -> bytes:
    """A tar.gz of programs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 1, mtime=0)


@contextmanager
def mirror_on(address: str, tools: AgentTools) -> Iterator[Mirror]:
    """A mirror on this address of the network that the caller is in; it has a thread and a loop of its own."""
    mirror = Mirror(tools)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mirror", daemon=True)
    thread.start()

    def do(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_START_S)

    try:
        runner = do(_served(mirror, address))
        try:
            yield mirror
        finally:
            do(runner.cleanup())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_S)
        loop.close()


async def _served(mirror: Mirror, address: str) -> web.AppRunner:
    application = web.Application()
    application.router.add_route("GET", "/{path:.*}", mirror.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    mirror.ca.issue_cert(address).configure_cert(tls)
    await web.TCPSite(runner, address, 0).start()
    await web.TCPSite(runner, address, 0, ssl_context=tls).start()
    plain, secure = (each[1] for each in runner.addresses)
    mirror.base, mirror.base_tls = f"http://{address}:{plain}", f"https://{address}:{secure}"
    return runner
