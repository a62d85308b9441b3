"""The contract of node images: files, versions and architecture of a root file system in which Pods can run.

`observe` reads a root file system, `faults` is pure. images/README.md documents the contract for authors of images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.node import containerd
from unbounded.api.failures import Rejected
from unbounded.fetch.system_tree import SystemTree

LEAST_SYSTEMD: Final = 244  # first version that delegates cgroups v2 as runc needs it
_MACHINES: Final = {"amd64": 62, "arm64": 183}  # ELF: EM_X86_64, EM_AARCH64
_SYSTEMD: Final = re.compile(rb"libsystemd-(?:shared|core)-([0-9]{3})")


@dataclass(frozen=True)
class ImageRequirement:
    """A file that the contract requires.

    Args:
        paths: any one of them is enough.
        reason: why a node needs it.
    """

    name: str
    paths: tuple[str, ...]
    reason: str


def _program(name: str, reason: str, *others: str) -> ImageRequirement:
    folders = ("usr/bin", "usr/sbin", "bin", "sbin")
    paths = tuple(f"{folder}/{program}" for program in (name, *others) for folder in folders)
    return ImageRequirement(name, paths, reason)


INIT: Final = ("lib/systemd/systemd", "usr/lib/systemd/systemd", "sbin/init", "usr/sbin/init")
REQUIREMENTS: Final = (
    ImageRequirement("init", INIT, "systemd starts the services in the node"),
    ImageRequirement(
        "os-release", ("etc/os-release", "usr/lib/os-release"), "systemd-nspawn starts no tree without it"
    ),
    ImageRequirement("hosts", ("etc/hosts",), "containerd copies it into every Pod sandbox"),
    _program("dbus-daemon", "the agent talks over D-Bus to the node's systemd", "dbus-broker-launch"),
    _program("mount", "kubelet mounts volumes with it"),
    _program("umount", "kubelet unmounts volumes with it"),
    _program("iptables", "Services and host ports are packet filter rules", "nft"),
    ImageRequirement(
        "certificates",
        (
            "etc/ssl/certs/ca-certificates.crt",
            "etc/pki/tls/certs/ca-bundle.crt",
            "etc/ssl/ca-bundle.pem",
            "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
            "etc/ssl/cert.pem",
        ),
        "containerd pulls images over TLS",
    ),
)


@dataclass(frozen=True)
class ContractFault:
    """A clause of the contract that an image violates.

    Args:
        name: of the clause, such as `hosts`.
    """

    name: str
    message: str


@dataclass(frozen=True)
class ImageFacts:
    """Observed properties of a root file system.

    Args:
        present: names of the requirements with a file.
        machine: ELF machine number of its systemd; None where that is no ELF file.
        systemd: its version; 0 where the file does not contain it.
        sandbox_fault: why the sandbox image is unusable; empty where it is usable.
    """

    present: frozenset[str]
    machine: int | None
    systemd: int
    sandbox_fault: str


def observe(root: Path, arch: str) -> ImageFacts:
    """Read a root file system. Blocks.

    Args:
        arch: of the host, amd64 or arm64.
    """
    tree = SystemTree(root)
    try:
        present = frozenset(one.name for one in REQUIREMENTS if any(tree.has(path) for path in one.paths))
        init = next((content for path in INIT if (content := tree.read(path))), b"")
        archive = tree.read(containerd.ARCHIVE)
    finally:
        tree.close()
    found = _SYSTEMD.search(init)
    return ImageFacts(
        present=present,
        machine=_machine(init),
        systemd=int(found[1]) if found else 0,
        sandbox_fault=containerd.archive_fault(archive, arch),
    )


def faults(facts: ImageFacts, arch: str) -> tuple[ContractFault, ...]:
    """Return the violated clauses. Pure.

    Args:
        arch: of the host, amd64 or arm64.
    """
    return tuple(_faults(facts, arch))


def _faults(facts: ImageFacts, arch: str) -> Iterator[ContractFault]:
    for one in REQUIREMENTS:
        if one.name not in facts.present:
            yield ContractFault(one.name, f"no /{' or /'.join(_shortest(one.paths))}: {one.reason}")
    if facts.machine not in (None, _MACHINES[arch]):
        named = next((name for name, machine in _MACHINES.items() if machine == facts.machine), f"ELF {facts.machine}")
        yield ContractFault("architecture", f"its systemd is for {named}, but this host is {arch}")
    if 0 < facts.systemd < LEAST_SYSTEMD:
        yield ContractFault("systemd", f"version {facts.systemd} is older than {LEAST_SYSTEMD}")
    if facts.sandbox_fault:
        yield ContractFault("sandbox", facts.sandbox_fault)


def require(root: Path, arch: str) -> None:
    """Check a root file system. Blocks.

    Raises:
        Rejected: it violates the contract; the message names each clause.
    """
    if found := faults(observe(root, arch), arch):
        broken = "; ".join(f"{one.name}: {one.message}" for one in found)
        raise Rejected(f"the node image does not meet the requirements of node images: {broken}")


def _shortest(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return one path for each file name."""
    return tuple({path.rpartition("/")[2]: path for path in reversed(paths)}.values())[::-1]


def _machine(program: bytes) -> int | None:
    return int.from_bytes(program[18:20], "little") if program[:4] == b"\x7fELF" else None
