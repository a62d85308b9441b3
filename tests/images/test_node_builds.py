"""The builds of node images that `make test` has no image of: Ubuntu's, from an archive of Ubuntu's form with Debian's
packages (`make soak` builds it from Ubuntu's own); and arm64, in a soak, as its programs run under emulation."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tests.images.layouts import architecture, unpacked
from tests.images.support import TOP, needed
from unbounded.agent.node.contract import faults, observe

UBUNTU: Final = TOP / "images" / "node-ubuntu2404" / "build"
DEBIAN: Final = TOP / "images" / "node-debian12" / "build"
UBUNTU_KEYS: Final = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
EMULATED: Final = TOP / "tests" / "support" / "emulated.sh"
BUILD_S: Final = 300.0
EMULATED_S: Final = 1500.0
ROOT: Final = pytest.mark.skipif(os.geteuid() != 0, reason="the build needs root")
PROGRAMS: Final = """
uname -m; systemctl --version; ethtool --version; socat -V
iptables-legacy --version # nft and conntrack ask the kernel, by what QEMU does not emulate
/pause & pause=$!
sleep 2; kill $pause; wait $pause; echo pause: $?
"""
AARCH64: Final = b"\xb7\x00"


@dataclass(frozen=True)
class Archive:
    base: str
    keyring: Path


def run(*argv: str | Path, limit_s: float = BUILD_S, **environment: str) -> tuple[int, str]:
    """Run a command: its exit code, and what it printed."""
    ran = subprocess.run(
        argv,
        env={**os.environ, "LEVEL": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return ran.returncode, ran.stdout


# Wrong use


@pytest.mark.root
@ROOT
@pytest.mark.parametrize("build", [UBUNTU, DEBIAN], ids=["Ubuntu", "Debian"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a folder"),
        (("--arch",), "--arch wants amd64 or arm64"),
        (("--arch", "s390x", "out"), "--arch s390x: amd64 or arm64"),
        (("--arm64", "out"), "--arm64 is not known"),
        (("out", "other"), "one folder is wanted"),
    ],
)
def test_wrong_arguments_are_told(build: Path, arguments: tuple[str, ...], words: str) -> None:
    status, said = run(build, *arguments)
    assert (status, said) == (1, f"build: {words}; use: build [--arch amd64|arm64] OUT\n")


@pytest.mark.root
@ROOT
def test_ubuntus_build_names_the_keys_that_it_lacks(tmp_path: Path) -> None:
    absent = tmp_path / "absent.gpg"
    status, said = run(UBUNTU, tmp_path / "out", UBUNTU_KEYRING=str(absent))
    assert (status, said) == (1, f"build: {absent} is missing (package ubuntu-keyring)\n")


@pytest.mark.slow
@pytest.mark.root
@ROOT
def test_ubuntus_build_refuses_keys_that_are_not_those_of_the_release(tmp_path: Path) -> None:
    if Path(UBUNTU_KEYS).exists():
        pytest.skip("this system has the keys of Ubuntu; the test needs one without")
    package = tmp_path / "archive/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"another package")
    with served(tmp_path / "archive", elsewhere="") as address:
        status, said = run(UBUNTU, tmp_path / "out", UBUNTU_ARCHIVE=address)
    assert status == 1
    assert said.endswith(
        f"build: {UBUNTU_KEYS} is missing (package ubuntu-keyring), and {package.name} could not be downloaded\n"
    )
    assert not list((tmp_path / "out").glob("oci*"))


# Ubuntu's


@contextmanager
def served(folder: Path, elsewhere: str) -> Iterator[str]:
    """Serve a folder; packages are in another archive, where one is named."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/pool/") or not elsewhere:
                super().do_GET()
                return
            self.send_response(302)
            self.send_header("Location", elsewhere + self.path[1:])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def lay_out(folder: Path, packages: bytes) -> None:
    """Write the suite `noble` as Ubuntu has it, unsigned."""
    suite = folder / "dists" / "noble"
    sums = []
    for component, content in (("main", packages), ("universe", b"")):
        path = suite / component / "binary-amd64" / "Packages"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {path.relative_to(suite)}\n")
    (suite / "Release").write_text(
        "Origin: Ubuntu\nSuite: noble\nCodename: noble\nArchitectures: amd64\nComponents: main universe\n"
        f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{''.join(sums)}"
    )


def sign(suite: Path, home: Path) -> Path:
    """Sign a suite with a new key; return the file of keys."""
    home.mkdir(mode=0o700)
    gpg = (needed("gpg"), "--batch", "--quiet", "--homedir", home, "--pinentry-mode", "loopback", "--passphrase", "")
    subprocess.run((*gpg, "--quick-generate-key", "archive@example.com", "rsa3072", "sign", "never"), check=True)
    subprocess.run((*gpg, "--clearsign", "--output", suite / "InRelease", suite / "Release"), check=True)
    keyring = home / "keys.gpg"
    subprocess.run((*gpg, "--export", "--output", keyring), check=True)
    return keyring


@pytest.fixture
def noble(tmp_path: Path) -> Iterator[Archive]:
    """An archive of Ubuntu's form, with the packages of this system's Debian."""
    form = "$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI) $(FILENAME)"
    targets = subprocess.run(
        (needed("apt-get"), "indextargets", "--format", form, "Created-By: Packages"),
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    base, lists = next((line.split()[3:] for line in targets if line.startswith("Debian main bookworm ")), (None, None))
    if base is None or lists is None:
        pytest.skip("this system's apt has no lists of Debian 12")
    packages = subprocess.run(("/usr/lib/apt/apt-helper", "cat-file", lists), capture_output=True, check=True).stdout
    lay_out(tmp_path / "archive", packages)
    keyring = sign(tmp_path / "archive" / "dists" / "noble", tmp_path / "gpg")
    with served(tmp_path / "archive", base) as address:
        yield Archive(address, keyring)


@pytest.mark.slow
@pytest.mark.root
@ROOT
@pytest.mark.timeout(BUILD_S)
async def test_ubuntus_build_makes_a_node_image_from_an_archive_of_ubuntus_form(noble: Archive, tmp_path: Path) -> None:
    status, said = run(UBUNTU, tmp_path / "out", UBUNTU_ARCHIVE=noble.base, UBUNTU_KEYRING=str(noble.keyring))
    assert status == 0, said
    assert "packages of Ubuntu noble for amd64" in said
    assert architecture(tmp_path / "out" / "oci") == "amd64"
    root = await unpacked(tmp_path / "out" / "oci", tmp_path / "root")
    assert faults(observe(root, "amd64"), "amd64") == ()
    (sources,) = (root / "etc/apt").glob("sources.list.d/*.list")
    assert f"{noble.base} noble main universe" in sources.read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("oci", "sandbox-amd64.tar", "sandbox-amd64.tar.sha256")
    ]


# arm64


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.root
@ROOT
@pytest.mark.timeout(2 * EMULATED_S)
async def test_debians_build_makes_an_arm64_image_whose_programs_run(tmp_path: Path) -> None:
    status, said = run(DEBIAN, "--arch", "arm64", tmp_path / "out", limit_s=EMULATED_S)
    assert status == 0, said
    assert architecture(tmp_path / "out" / "oci") == "arm64"
    root = await unpacked(tmp_path / "out" / "oci", tmp_path / "root")
    assert faults(observe(root, "arm64"), "arm64") == ()
    assert [one.name for one in faults(observe(root, "amd64"), "amd64")] == ["architecture", "sandbox"]
    foreign = [path for path in root.rglob("*") if (head := _head(path))[:4] == b"\x7fELF" and head[18:20] != AARCH64]
    assert foreign == []
    with tarfile.open(root / "usr/share/unbounded/sandbox.tar") as archive:
        _unpack_pause(archive, root)
    status, said = run(EMULATED, root, "/bin/sh", "-ec", PROGRAMS, limit_s=EMULATED_S)
    assert status == 0, said
    for words in ("aarch64", "systemd 252", "iptables v1.8", "ethtool version", "socat version"):
        assert words in said
    assert said.splitlines()[-1] == "pause: 0"


def _unpack_pause(archive: tarfile.TarFile, root: Path) -> None:
    """The program of the sandbox image, whose layer is the only tar in it."""
    for member in archive.getmembers():
        blob = archive.extractfile(member)
        if blob is not None and tarfile.is_tarfile(blob):
            blob.seek(0)
            with tarfile.open(fileobj=blob) as layer:
                layer.extractall(root, filter="data")


def _head(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(20)
