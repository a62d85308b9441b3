"""Ports of network boot: images on disk, facts of the cluster, attestation, MACs of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unbounded.api.machine import Machine
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.http.ports import NotReadyYet, ReportAnswer
from unbounded.metalman.templates import TemplateContext


@dataclass(frozen=True, slots=True)
class NetbootImage:
    """OCI image that is completely on disk. `root` is its directory `disk`, whose content never changes."""

    root: Path
    digest: str

    @property
    def is_on_disk(self) -> bool:
        """Return whether the files are still on disk; an administrator may have removed the folder."""
        return self.root.is_dir()


@dataclass(frozen=True, slots=True)
class BootImages:
    """Images that a Machine boots from.

    Args:
        loaders: the boot files that `metadata.yaml` of the netboot image names.
        disk_sha256: hex digest of the disk image from the `metadata.yaml` beside it; empty if the file has none.
    """

    netboot: NetbootImage
    disk: NetbootImage
    loaders: Mapping[Loader, str]
    disk_sha256: str = ""

    @property
    def is_on_disk(self) -> bool:
        """Return whether the files of both images are still on disk."""
        return self.netboot.is_on_disk and self.disk.is_on_disk


class BootImageSource(Protocol):
    def of(self, machine: Machine) -> BootImages | NotReadyYet:
        """Return the images of a Machine, or `NotReadyYet` with the reason if they are not on disk. Does not block."""
        ...


class FactUnknown(Exception):
    """A value that templates need is not available now; the message names it."""


class TemplateContextSource(Protocol):
    async def template_context(self, machine: Machine, serve_url: str, *, private: bool) -> TemplateContext:
        """Return the values that templates get besides the Machine.

        Args:
            serve_url: the URL of this boot, with its prefix.
            private: the client knows the prefix; only then may the file contain a token.
        Raises:
            FactUnknown: a value is not available now.
            Rejected: the user has to correct a setting, which the message names.
        """
        ...


class Attester(Protocol):
    async def answer(self, machine: Machine, request: bytes) -> ReportAnswer:
        """Answer an attestation request of a TPM that claims to be the Machine's."""
        ...


MacLookup = Callable[[str], str | None]
"""Lookup of the MAC behind an IPv4 address, in lower case; None if the kernel has no entry."""
