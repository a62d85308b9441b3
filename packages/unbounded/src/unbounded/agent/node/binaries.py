"""Installation of a slot's binaries from their artifacts. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from unbounded.agent.artifacts.cache import Fetched
from unbounded.agent.node.sandbox import ARCHIVE
from unbounded.api.failures import Rejected
from unbounded.fetch.archive import Archive, Member, MemberKind
from unbounded.fetch.names import Names, names_of
from unbounded.fetch.system_tree import SystemTree

LARGEST_BYTES: Final = 4 << 30  # of an archive's content


@dataclass(frozen=True)
class ArtifactPlacement:
    """Destination of an artifact.

    Args:
        into: a directory for an archive's files, a path for a binary.
        below: the archive's directory whose files are installed; empty for its top.
        needs: files that the archive must contain; none for a binary that is no archive.
    """

    into: str
    below: str = ""
    needs: tuple[str, ...] = ()


PLACEMENTS: Final[Mapping[str, ArtifactPlacement]] = {
    "kubelet": ArtifactPlacement("/usr/local/bin/kubelet"),
    "kubectl": ArtifactPlacement("/usr/local/bin/kubectl"),
    "kube-proxy": ArtifactPlacement("/usr/local/bin/kube-proxy"),
    "containerd": ArtifactPlacement("/usr/local/bin", "bin", ("containerd", "containerd-shim-runc-v2", "ctr")),
    "runc": ArtifactPlacement("/usr/local/sbin/runc"),
    "cni": ArtifactPlacement("/opt/cni/bin", "", ("bridge", "host-local", "loopback")),
    "crictl": ArtifactPlacement("/usr/local/bin", "", ("crictl",)),
    "sandbox": ArtifactPlacement(ARCHIVE),
}


def install(fetched: Fetched, root: Path) -> None:
    """Install an artifact into the root file system of a slot.

    Raises:
        Rejected: the archive lacks a required file, or has members other than regular files; the message names it.
        Transient: the disk refuses.
    """
    place = PLACEMENTS[fetched.artifact.name]
    with closing(SystemTree(root)) as tree:
        if not place.needs:
            tree.copy(fetched.path, place.into)
            return
        try:
            _unpack(fetched.path, place, tree)
        except Rejected as failure:
            raise Rejected(f"{fetched.artifact.name}, from {fetched.artifact.shown}: {failure}") from failure


def _unpack(path: Path, place: ArtifactPlacement, tree: SystemTree) -> None:
    found: set[str] = set()
    into = names_of(place.into)
    with path.open("rb") as file:
        archive = Archive(file, LARGEST_BYTES)
        for member in archive:
            if member.names[:-1] != names_of(place.below) or not _is_file(member):
                continue
            name = member.names[-1]
            plain = replace(member, names=(*into, name), mode=0o755, owner=(0, 0), attributes=())
            tree.add(plain, archive)
            found.add(name)
    if missing := set(place.needs) - found:
        raise Rejected(f"it has no {', '.join(sorted(missing))}")


def _is_file(member: Member) -> bool:
    """Return whether the member is a regular file. Raises Rejected for types that such an archive must not contain."""
    if member.kind is MemberKind.FOLDER or not member.names:
        return False
    if member.kind is not MemberKind.FILE or "\\" in member.names[-1]:
        raise Rejected(f"{_shown(member.names)}: only regular files are accepted")
    return True


def _shown(names: Names) -> str:
    return ascii("/".join(names))
