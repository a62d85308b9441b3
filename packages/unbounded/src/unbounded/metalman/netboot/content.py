"""Content of image files for the TFTP server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class FileContent:
    """File of an image that stays open until `close`.

    Args:
        sent: called by `close` if the file was read to its end.
    """

    def __init__(self, path: Path, sent: Callable[[], None]) -> None:
        """Open the file.

        Raises:
            OSError: the file cannot be opened.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size
        self._sent = sent
        self._whole = False

    def read(self, at: int, count: int) -> bytes:
        self._whole = self._whole or at + count >= self.size
        return os.pread(self._descriptor, count, at)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._whole:
            self._sent()


class TextContent:
    """Generated text; `sent` as in `FileContent`."""

    def __init__(self, content: bytes, sent: Callable[[], None]) -> None:
        self._content = content
        self.size = len(content)
        self._sent = sent
        self._whole = False

    def read(self, at: int, count: int) -> bytes:
        self._whole = self._whole or at + count >= self.size
        return self._content[at : at + count]

    def close(self) -> None:
        if self._whole:
            self._sent()
