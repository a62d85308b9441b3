"""The node images as scripts/node-image built them, and what turns a plain system into a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.images.layouts import architecture, unpacked
from tests.images.support import TOP
from tests.support.qemu.tools import built
from unbounded.agent.node.contract import faults, observe

DISTRIBUTIONS = [
    pytest.param("debian12", "Debian GNU/Linux 12", id="Debian"),
    pytest.param("ubuntu2404", "Ubuntu 24.04", id="Ubuntu", marks=pytest.mark.soak),
]


def layout_of(distribution: str) -> Path:
    """Return the built image; skip the test if there is none."""
    layout = built(f"node-{distribution}/oci")
    if layout is None:
        pytest.skip(f"the image is not built; `scripts/node-image {distribution}` builds it, as root")
    return layout


@pytest.mark.parametrize(("distribution", "name"), DISTRIBUTIONS)
def test_the_built_image_is_for_this_architecture(distribution: str, name: str) -> None:
    assert architecture(layout_of(distribution)) == "amd64"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="owners of files need root")
@pytest.mark.parametrize(("distribution", "name"), DISTRIBUTIONS)
async def test_the_built_image_keeps_the_contract_and_holds_what_pods_need(
    distribution: str, name: str, tmp_path: Path
) -> None:
    root = await unpacked(layout_of(distribution), tmp_path / "root")
    assert f'PRETTY_NAME="{name}' in (root / "usr/lib/os-release").read_text()
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


def test_make_node_adds_the_files_of_the_image_contract(tmp_path: Path) -> None:
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
