"""The node image of Debian 12 as it was built, and the Containerfile of Ubuntu's, which cannot be built in tests: there
is no container engine, and no archive of Ubuntu."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.images.support import TOP
from tests.support.qemu.tools import built
from unbounded.agent.node.contract import faults, observe
from unbounded.agent.node.rootfs import unpack_image
from unbounded.fetch.digests import Digest

LAYOUT = built("node-debian12/oci")
FOLDER = TOP / "images" / "node-ubuntu2404"
needs_image = pytest.mark.skipif(LAYOUT is None, reason="the image is not built; scripts/node-image builds it, as root")


def blob(digest: str) -> Path:
    assert LAYOUT is not None
    return LAYOUT / "blobs" / digest.replace(":", "/")


def document(digest: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(blob(digest).read_bytes())
    return found


@pytest.fixture(scope="module")
def layers() -> list[Path]:
    """The layers, with the check that each is what its digest says."""
    assert LAYOUT is not None
    (named,) = json.loads((LAYOUT / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(named["digest"]).read_bytes())
    config = document(manifest["config"]["digest"])
    assert config["architecture"] == named["platform"]["architecture"] == "amd64"
    digests = [Digest.parse(layer["digest"]) for layer in manifest["layers"]]
    paths = [blob(str(digest)) for digest in digests]
    for digest, path in zip(digests, paths, strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest.hex
    return paths


@needs_image
@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="owners of files need root")
async def test_the_built_image_keeps_the_contract_and_holds_what_pods_need(layers: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    await unpack_image(layers, root, lambda _: None)
    assert faults(observe(root, "amd64"), "amd64") == ()
    assert "localhost" in (root / "etc/hosts").read_text()
    for program in ("iptables", "nft", "conntrack", "ethtool", "ip", "modprobe", "mkfs.ext4"):
        assert any((root / folder / program).is_symlink() or (root / folder / program).exists()
                   for folder in ("usr/sbin", "usr/bin")), program  # fmt: skip
    for program in ("socat", "mount", "umount", "nsenter"):
        assert (root / "usr/bin" / program).exists(), program
    assert not (root / "etc/resolv.conf").exists(), "the host's is shown to it"
    assert (root / "etc/machine-id").read_bytes() == b""
    assert list((root / "var/lib/apt/lists").iterdir()) == []


def test_the_containerfile_of_ubuntu_copies_what_is_there_and_makes_a_node_of_it() -> None:
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    assert [rest for name, rest in lines if name == "FROM"] == ["${UBUNTU} AS root", "scratch"]
    copied = [rest.split()[0] for name, rest in lines if name == "COPY" and not rest.startswith("--from=root")]
    assert copied == ["images/common/node.sh", "build/sandbox/sandbox-${TARGETARCH}.tar"]
    assert (TOP / copied[0]).exists()
    (command,) = (rest for name, rest in lines if name == "RUN")
    subprocess.run(["bash", "-n", "-c", command], check=True)
    assert '"${node_packages[@]}"' in command
    assert "make_node /node /source/sandbox.tar" in command


def test_make_node_turns_a_plain_system_into_one_with_the_files_of_the_contract(tmp_path: Path) -> None:
    for folder in ("etc/systemd/system", "var/lib/apt/lists/partial", "var/log", "usr/share/doc/a"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root/etc/resolv.conf").write_text("nameserver 10.0.0.1\n")
    (tmp_path / "sandbox.tar").write_bytes(b"archive")
    script = f'. "{TOP}/images/common/node.sh"; make_node "$1/root" "$1/sandbox.tar"'
    subprocess.run(["bash", "-euo", "pipefail", "-c", script, "-", str(tmp_path)], check=True)
    root = tmp_path / "root"
    assert "localhost" in (root / "etc/hosts").read_text()
    assert (root / "usr/share/unbounded/sandbox.tar").read_bytes() == b"archive"
    assert not (root / "etc/resolv.conf").exists()
    assert list((root / "usr/share/doc").iterdir()) == []
    assert os.readlink(root / "etc/systemd/system/systemd-networkd.service") == "/dev/null"
