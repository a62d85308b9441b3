"""Ports of network boot: images on disk, facts of the cluster, attestation, MACs of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unbounded.api.machine import Machine
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.http.ports import NotYet, Outcome
from unbounded.metalman.templates import Surroundings


@dataclass(frozen=True, slots=True)
class Image:
    """OCI image that is completely on disk. `root` is its directory `disk`, whose content never changes."""

    root: Path
    digest: str

    @property
    def is_there(self) -> bool:
        """Return whether the files are still on disk; an administrator may have removed the folder."""
        return self.root.is_dir()


@dataclass(frozen=True, slots=True)
class Served:
    """Images that a Machine boots from.

    Args:
        loaders: the boot files that `metadata.yaml` of the netboot image names.
        disk_sha256: hex digest of the disk image from the `metadata.yaml` beside it; empty if the file has none.
    """

    netboot: Image
    disk: Image
    loaders: Mapping[Loader, str]
    disk_sha256: str = ""

    @property
    def is_there(self) -> bool:
        """Return whether the files of both images are still on disk."""
        return self.netboot.is_there and self.disk.is_there


class Images(Protocol):
    def of(self, machine: Machine) -> Served | NotYet:
        """Return the images of a Machine, or `NotYet` with the reason if they are not on disk. Does not block."""
        ...


class NotKnown(Exception):
    """A value that templates need is not available now; the message names it."""


class Facts(Protocol):
    async def surroundings(self, machine: Machine, serve_url: str, *, private: bool) -> Surroundings:
        """Return the values that templates get besides the Machine.

        Args:
            serve_url: the URL of this boot, with its prefix.
            private: the client knows the prefix; only then may the file contain a token.
        Raises:
            NotKnown: a value is not available now.
            Rejected: the user has to correct a setting, which the message names.
        """
        ...


class Attestation(Protocol):
    async def answer(self, machine: Machine, request: bytes) -> Outcome:
        """Answer an attestation request of a TPM that claims to be the Machine's."""
        ...


Neighbours = Callable[[str], str | None]
"""The MAC that the kernel knows behind an IPv4 address, in lower case; None where it knows none."""
