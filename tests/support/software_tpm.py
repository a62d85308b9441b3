"""A software TPM (swtpm) as a process of its own, and tpm2-tools against it; scripts/tpm-tools brings both."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import two_free_ports
from unbounded.join.tpm import Tpm, socket_tpm

TOOLS = Path(sys.prefix) / "tools" / "bin"
PATH = f"{TOOLS}:{os.environ['PATH']}"
START_S = 20.0
LIMIT_S = 60.0
MISSING = [
    name
    for name in ("swtpm", "swtpm_setup", "swtpm_localca", "swtpm_cert", "certtool", "tpm2")
    if shutil.which(name, path=PATH) is None
]
needs_tpm = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} missing: run scripts/tpm-tools")
# The file that tpm2-tools keep a credential in: a magic number and a version before what the TPM takes.
CREDENTIAL_HEAD = struct.pack(">II", 0xBADCC0DE, 1)


@dataclass(frozen=True)
class SoftwareTpm:
    """A TPM that runs; `folder` is for files."""

    port: int
    folder: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def tools(self, *arguments: str) -> str:
        """Run one of tpm2-tools in the folder; what it prints."""
        environ = {"PATH": PATH, "HOME": str(self.folder), "TPM2TOOLS_TCTI": f"swtpm:host=127.0.0.1,port={self.port}"}
        done = subprocess.run(
            ["tpm2", *arguments],
            check=False,
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"tpm2 {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def forget(self) -> None:
        """Take away what earlier tools left in it: it holds three objects at most."""
        for kind in ("--transient-object", "--loaded-session", "--saved-session"):
            self.tools("flushcontext", kind)

    @contextmanager
    def ours(self) -> Iterator[Tpm]:
        """The same TPM by our own commands."""
        with socket_tpm(self.address) as transport:
            yield Tpm(transport)

    def public_keys(self, kind: str) -> tuple[bytes, bytes]:
        """TPM2B_PUBLIC of the endorsement key and of a storage root key, made by the tools."""
        self.tools("createek", "-Q", "-G", kind, "-c", "ek.ctx", "-u", "ek.pub")
        self.forget()
        self.tools("createprimary", "-Q", "-C", "o", "-G", kind, "-c", "srk.ctx")
        self.tools("readpublic", "-Q", "-c", "srk.ctx", "-o", "srk.pub")
        self.forget()
        return (self.folder / "ek.pub").read_bytes(), (self.folder / "srk.pub").read_bytes()

    def activate(self, blob: bytes, secret: bytes) -> bytes:
        """Open what was wrapped for the keys of `public_keys`, with the tools, and return it."""
        (self.folder / "credential").write_bytes(CREDENTIAL_HEAD + blob + secret)
        self.tools("startauthsession", "--policy-session", "-S", "session.ctx")
        self.tools("policysecret", "-Q", "-S", "session.ctx", "-c", "e")
        try:
            self.tools(
                *("activatecredential", "-Q", "-c", "srk.ctx", "-C", "ek.ctx"),
                *("-i", "credential", "-o", "opened", "-P", "session:session.ctx"),
            )
        finally:
            self.forget()
        return (self.folder / "opened").read_bytes()


@contextmanager
def software_tpm(folder: Path, *, maker: bool = False) -> Iterator[SoftwareTpm]:
    """Run one; with `maker` it has an endorsement certificate, signed by the authority in FOLDER/ca."""
    state = folder / "state"
    state.mkdir(parents=True)
    if maker:
        make_certificates(folder, state)
    port = two_free_ports()  # the tools take the second one for the control channel
    command = [
        *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", "--flags", "not-need-init,startup-clear"),
        *("--server", f"type=tcp,port={port},bindaddr=127.0.0.1"),
        *("--ctrl", f"type=tcp,port={port + 1},bindaddr=127.0.0.1"),
    ]
    log = folder / "swtpm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={"PATH": PATH}, stdout=out, stderr=out)
    try:
        _wait(port, process, log)
        yield SoftwareTpm(port, folder)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()


@contextmanager
def unix_tpm(folder: Path) -> Iterator[str]:
    """Run one on a Unix socket, which hosts in network namespaces reach too; the socket's path.

    Programs take it one after the other: it serves one connection, and waits for the next.
    """
    (folder / "state").mkdir(parents=True)
    path, log = folder / "tpm.sock", folder / "swtpm.log"
    command = [
        *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder / 'state'}"),
        *("--flags", "not-need-init,startup-clear"),
        *("--server", f"type=unixio,path={path}", "--ctrl", f"type=unixio,path={folder / 'ctrl.sock'}"),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={"PATH": PATH}, stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_S
        while not path.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield str(path)
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it listens, without taking its only connection."""
    end = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port + 1)) == 0:
                return
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


@contextmanager
def tpm_of_a_machine(folder: Path) -> Iterator[tuple[str, ...]]:
    """A TPM with an endorsement certificate, signed by FOLDER/ca/cert.pem, for one run of QEMU: its arguments."""
    state, control = folder / "state", folder / "control"
    state.mkdir(parents=True)
    make_certificates(folder, state)
    command = [
        *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", "--flags", "not-need-init", "--terminate"),
        *("--ctrl", f"type=unixio,path={control}"),
    ]
    with (folder / "swtpm.log").open("wb") as out:
        process = subprocess.Popen(command, env={"PATH": PATH}, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not control.exists():
            assert process.poll() is None, (folder / "swtpm.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield (
            *("-chardev", f"socket,id=tpm,path={control}"),
            *("-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"),
        )
    finally:
        process.kill()
        process.wait(5)


def make_certificates(folder: Path, state: Path) -> None:
    authority = folder / "ca"
    authority.mkdir()
    named = {"statedir": "", "signingkey": "key.pem", "issuercert": "cert.pem", "certserial": "serial"}
    (folder / "localca.conf").write_text("".join(f"{key} = {authority / name}\n" for key, name in named.items()))
    (folder / "localca.options").write_text("--platform-manufacturer Lab\n--platform-version 1\n--platform-model VM\n")
    (folder / "setup.conf").write_text(
        f"create_certs_tool = {shutil.which('swtpm_localca', path=PATH)}\n"
        f"create_certs_tool_config = {folder / 'localca.conf'}\n"
        f"create_certs_tool_options = {folder / 'localca.options'}\n"
        "active_pcr_banks = sha256\n"
    )
    done = subprocess.run(
        [
            *("swtpm_setup", "--tpm2", "--tpmstate", str(state), "--config", str(folder / "setup.conf")),
            *("--create-ek-cert", "--overwrite", "--tpm", f"{shutil.which('swtpm', path=PATH)} socket"),
        ],
        check=False,
        env={"PATH": PATH, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
