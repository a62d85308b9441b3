"""What network boot needs from outside: the images on disk, the cluster's facts, attestation, the neighbours' MACs."""

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
    """An OCI image that is on disk, whole. `root` is its directory `disk`; what lies there never changes."""

    root: Path
    digest: str

    @property
    def is_there(self) -> bool:
        """Whether its files are still on the disk: somebody may have removed the folder."""
        return self.root.is_dir()


@dataclass(frozen=True, slots=True)
class Served:
    """What a Machine boots from.

    Args:
        loaders: the boot files that `metadata.yaml` of the netboot image names.
        disk_sha256: the digest of the disk image in hex, as `metadata.yaml` beside it says; empty if it does not.
    """

    netboot: Image
    disk: Image
    loaders: Mapping[Loader, str]
    disk_sha256: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the files of both images are still on the disk."""
        return self.netboot.is_there and self.disk.is_there


class Images(Protocol):
    def of(self, machine: Machine) -> Served | NotYet:
        """The images of a Machine; NotYet says why they are not there. It does not wait."""
        ...


class NotKnown(Exception):
    """What templates are told is not known now; the text says what is missing."""


class Facts(Protocol):
    async def surroundings(self, machine: Machine, serve_url: str, *, private: bool) -> Surroundings:
        """Return what templates are told beside the Machine.

        Args:
            serve_url: the URL of this boot, with its prefix.
            private: the file goes to a client that knows the prefix; a token stands in no other.
        Raises:
            NotKnown
            Rejected: a person has to mend it; the text says what.
        """
        ...


class Attestation(Protocol):
    async def answer(self, machine: Machine, request: bytes) -> Outcome:
        """The answer to a TPM that says it is this Machine's."""
        ...


Neighbours = Callable[[str], str | None]
"""The MAC that the kernel knows behind an IPv4 address, in lower case; None where it knows none."""
