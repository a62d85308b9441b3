"""Files of a release, their sums, and their signatures, which openssl checks."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from scripts.release import PARTS, make, private_key, sign, write_sums

EPOCH: Final = 1_750_000_000
OPENSSL: Final = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="needs openssl")


def openssl(*words: str, ok: bool = True) -> str:
    ran = subprocess.run([OPENSSL or "openssl", *words], capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is ok, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_equal_commits_make_equal_files(tmp_path: Path) -> None:
    cheap = [part for part in PARTS if part in ("python", "manifests")]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make(tmp_path / name, cheap, epoch=EPOCH)
    sums = (tmp_path / "one" / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "two" / "SHA256SUMS").read_text()
    names = [line.split("  ")[1] for line in sums.splitlines()]
    assert {name.split("-")[0] for name in names} == {
        *("requirements.txt", "requirements", "unbounded", "unbounded_apiserver", "unbounded_lab")
    }
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]


def test_sums_are_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"one")
    write_sums(tmp_path)
    write_sums(tmp_path)
    wanted = [f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in (("a", b"one"), ("b", b"two"))]
    assert (tmp_path / "SHA256SUMS").read_text() == "".join(wanted)


@pytest.mark.slow
@needs_openssl
def test_openssl_checks_what_is_signed(tmp_path: Path) -> None:
    key, public, out = tmp_path / "key.pem", tmp_path / "key.pub", tmp_path / "out"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    openssl("ec", "-in", str(key), "-pubout", "-out", str(public))
    out.mkdir()
    for name in ("unbounded-agent-linux-amd64.tar.gz", "unbounded-agent", "unbounded-0.1.0-py3-none-any.whl"):
        (out / name).write_bytes(name.encode())
    write_sums(out)
    sign(out, private_key(key))
    signed = sorted(path.name for path in out.glob("*.sig"))
    assert signed == ["SHA256SUMS.sig", "unbounded-agent-linux-amd64.tar.gz.sig", "unbounded-agent.sig"]
    check = ("dgst", "-sha256", "-verify", str(public), "-signature")
    for name in signed:
        assert openssl(*check, str(out / name), str(out / name.removesuffix(".sig"))) == "Verified OK\n"
    (out / "SHA256SUMS").write_text("something else")
    openssl(*check, str(out / "SHA256SUMS.sig"), str(out / "SHA256SUMS"), ok=False)


@needs_openssl
@pytest.mark.parametrize(
    "words",
    [
        ("genpkey", "-algorithm", "ed25519"),
        ("ecparam", "-name", "secp384r1", "-genkey", "-noout"),
        ("ecparam", "-name", "prime256v1"),
        (),
    ],
)
def test_another_kind_of_key_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    if words:
        openssl(*words, "-out", str(key))
    with pytest.raises(SystemExit, match=r"RELEASE_KEY .*key.pem: .*expected an EC key on the curve P-256"):
        private_key(key)
