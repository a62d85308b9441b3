"""An initial RAM disk: files in the kernel's archive format (`newc`, Documentation/driver-api/early-userspace)."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Mapping

TRAILER = "TRAILER!!!"


def initrd(files: Mapping[str, bytes]) -> bytes:
    """All files executable, by their paths without the first slash; folders are made as they are needed."""
    folders = {str(parent) for path in files for parent in _parents(path)}
    entries = [_entry(folder, stat.S_IFDIR | 0o755, b"") for folder in sorted(folders)]
    entries += [_entry(path, stat.S_IFREG | 0o755, content) for path, content in files.items()]
    return gzip.compress(b"".join((*entries, _entry(TRAILER, 0, b""))), compresslevel=1, mtime=0)


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _entry(name: str, mode: int, content: bytes) -> bytes:
    named = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(named), 0)
    header = b"070701" + b"".join(b"%08X" % value for value in fields)
    return _padded(header + named) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
