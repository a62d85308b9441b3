"""Small releases and a host's folders for the tests of upgrades."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from unbounded.agent.paths import BINARY, HostPaths
from unbounded.agent.upgrade.releases import Colour, ReleaseInfo, ReleaseSlots


def make_release(folder: Path, version: str, *, libraries: bool = True) -> Path:
    """A release in a directory that is made; its executable answers `version`."""
    folder.mkdir(parents=True, exist_ok=True)
    executable = folder / BINARY
    executable.write_text(f"#!/bin/sh\necho unbounded-agent {version}\n")
    executable.chmod(0o755)
    if libraries:
        (folder / "_internal").mkdir()
        (folder / "_internal" / "library.so.1").write_text(f"library of {version}")
        (folder / "_internal" / "library.so").symlink_to("library.so.1")
    return executable


def place_release(releases: ReleaseSlots, version: str) -> Colour:
    """Put a release into the free slot."""
    with releases.scratch() as scratch:
        make_release(scratch, version)
        return releases.place(scratch, ReleaseInfo(version=version, sha256=version.ljust(64, "0")))


def host_with(root: Path, version: str) -> HostPaths:
    """A host that has one release, in use and proven."""
    paths = HostPaths(root)
    releases = ReleaseSlots(paths)
    releases.first(place_release(releases, version))
    releases.name_command()
    return paths


def version_in_use(paths: HostPaths) -> str:
    """Return the version that the command prints for a person: through all links."""
    return paths.command.read_text().split()[-1]


def tarball(path: Path, *members: tuple[str, bytes | str | None, int], kind: bytes | None = None) -> Path:
    """A gzipped tar archive: (name, content, mode); None is a directory, text the target of a symbolic link."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content, mode in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = kind or tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def program(text: str) -> bytes:
    return f"#!/bin/sh\n{text}\n".encode()


def release_tarball(path: Path, version: str, *, text: str = "") -> Path:
    """A release as it is published: a directory with the executable and its libraries."""
    return tarball(
        path,
        ("unbounded-agent", None, 0o755),
        ("unbounded-agent/unbounded-agent", program(text or f"echo unbounded-agent {version}"), 0o755),
        ("unbounded-agent/_internal", None, 0o755),
        ("unbounded-agent/_internal/library.so.1", f"library of {version}".encode(), 0o644),
        ("unbounded-agent/_internal/library.so", "library.so.1", 0o777),
    )


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
