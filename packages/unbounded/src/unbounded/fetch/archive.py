"""Members of a layer, decompressed, bounded and parsed by tarfile, which writes nothing; their names cannot leave it.

tarfile trusts sizes and offsets of an archive. Here it reads through `Forward`, which only moves forward and returns
little at a time. So a header can neither seek back nor allocate much memory. A name is a tuple of components.
"""

from __future__ import annotations

import enum
import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Self, cast

import zstandard

from unbounded.fetch.failures import TooLarge, UnusableContent

Names = tuple[str, ...]  # () is the root

LONGEST_NAME_BYTES: Final = 255  # of one component, the limit of Linux
LONGEST_PATH_BYTES: Final = 4096
DEEPEST: Final = 128
LARGEST_HEADER_BYTES: Final = 256 * 1024  # of one extended header: names, attributes
LARGEST_WINDOW_BYTES: Final = 128 << 20  # memory limit of zstd, the default of its command
_BLOCK: Final = 512
_ATTRIBUTE: Final = "SCHILY.xattr."
_NO_OWNER: Final = 0xFFFFFFFF  # chown leaves the owner unchanged
_NOBODY: Final = 65534
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


def names_of(path: str) -> Names:
    """Return the components of a member's path, without a leading slash and `.`.

    Raises:
        UnusableContent: `..`, a NUL, or more or longer components than a file system accepts.
    """
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise UnusableContent(f"{_shown(path)}: leads out of the tree")
    if "\0" in path:
        raise UnusableContent(f"{_shown(path)}: contains a NUL byte")
    try:
        sizes = [len(name.encode("utf-8", "surrogateescape")) for name in names]
    except UnicodeEncodeError:
        raise UnusableContent(f"{_shown(path)}: is not a valid file name") from None
    if (
        len(names) > DEEPEST
        or max(sizes, default=0) > LONGEST_NAME_BYTES
        or sum(sizes) + len(sizes) > LONGEST_PATH_BYTES
    ):
        raise UnusableContent(f"{_shown(path)}: is too long or too deep")
    return names


def link_of(target: str, place: Names) -> str:
    """Return the safe target of a symbolic link at `place`: relative, and inside the root whatever other links exist.

    Only leading `..` are accepted, at most as many as there are directories above: the link's own directories are no
    links, so these steps are safe. A later `..` would step up from the target of another link, and is rejected. An
    absolute target is relative to the image's root, and is rewritten as a relative one.

    Raises:
        UnusableContent: it leaves the root, or could.
    """
    above = len(place) - 1
    steps = [step for step in target.split("/") if step not in ("", ".")]
    if target.startswith("/"):
        while steps and steps[0] == "..":  # the parent of the root is the root
            steps.pop(0)
        steps = [".."] * above + steps
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    if up > above or ".." in steps[up:]:
        raise UnusableContent(
            f"{_shown('/'.join(place))}: the symbolic link to {_shown(target)} leads, or may lead, out of the tree"
        )
    names_of("/".join(steps[up:]))
    return "/".join(steps) or "."


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 120 else text[:117] + "...")


class MemberKind(enum.Enum):
    FILE = "file"
    FOLDER = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


_KINDS: Final = {
    tarfile.REGTYPE: MemberKind.FILE,
    tarfile.AREGTYPE: MemberKind.FILE,
    tarfile.CONTTYPE: MemberKind.FILE,
    tarfile.GNUTYPE_SPARSE: MemberKind.FILE,
    tarfile.DIRTYPE: MemberKind.FOLDER,
    tarfile.SYMTYPE: MemberKind.SYMLINK,
    tarfile.LNKTYPE: MemberKind.HARDLINK,
}


@dataclass(frozen=True)
class Member:
    """One entry of a layer.

    Args:
        pieces: the content's ranges in the file, (offset, length), with holes between.
        owner: user and group, by number.
        attributes: extended ones, by their full names.
    """

    names: Names
    kind: MemberKind | None  # None: a device, a FIFO, or an unknown type
    mode: int
    modified: float
    size: int = 0
    target: str = ""
    pieces: tuple[tuple[int, int], ...] = ()
    owner: tuple[int, int] = (0, 0)
    attributes: tuple[tuple[str, bytes], ...] = ()


class Forward(io.RawIOBase):
    """A stream that can skip forward, counts its bytes, and raises TooLarge at its limit."""

    def __init__(self, source: BinaryIO, limit: int, check: Callable[[], None]) -> None:
        self._source = source
        self._check = check
        self._limit = limit
        self._at = 0
        self.last = b""  # bytes of the last read, which distinguish an end mark from garbage

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return as many bytes as requested, less only at the end."""
        if size is None or not 0 <= size <= LARGEST_HEADER_BYTES:
            raise UnusableContent("a header of the archive is too long")
        self._check()
        parts, desired = [], size
        try:
            while desired and (part := self._source.read(desired)):
                parts.append(part)
                desired -= len(part)
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise UnusableContent(f"cannot decompress it: {error}") from error
        content = b"".join(parts)
        self._at += len(content)
        if self._at > self._limit:
            raise TooLarge(f"the archive contains more than {self._limit} bytes")
        if size:
            self.last = content
        return content

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or position < self._at:
            raise UnusableContent("the archive refers back to earlier content")
        if position > self._limit:
            raise TooLarge(f"the archive contains more than {self._limit} bytes")
        while self._at < position:
            if not self.read(min(position - self._at, LARGEST_HEADER_BYTES)):
                raise UnusableContent("the archive ends in the middle of a file")
        return self._at


class Archive:
    """A layer that is read once, from front to back.

    Args:
        file: the blob; its content decides whether it is compressed, as media types are often wrong.
        limit: maximum of decompressed bytes.
        check: called before every read; an exception from it ends the reading.
    """

    def __init__(self, file: BinaryIO, limit: int, check: Callable[[], None] = lambda: None) -> None:
        self._stream = Forward(_decompressed(file), limit, check)

    def __iter__(self) -> Iterator[Member]:
        """Yield the members; read the content of one before the next one.

        Raises:
            UnusableContent: no tar archive, or a damaged or malicious one.
            TooLarge: past the limit.
        """
        try:
            yield from self._members()
        except (tarfile.TarError, RecursionError, OverflowError, ValueError) as error:
            raise UnusableContent(f"not a readable tar archive: {error}") from error

    def _members(self) -> Iterator[Member]:
        how: Any = {"tarinfo": Header, "errors": "surrogateescape", "encoding": "utf-8"}
        with tarfile.open(fileobj=self._stream, mode="r:", **how) as tar:
            while (info := tar.next()) is not None:
                cast("Any", tar).members.clear()  # tarfile keeps all of them otherwise
                if sum(len(key) + len(str(value)) for key, value in tar.pax_headers.items()) > LARGEST_HEADER_BYTES:
                    raise UnusableContent("the archive's global headers are too long")
                yield self._member(info)
            if len(self._stream.last) not in (0, _BLOCK) or any(self._stream.last):
                raise UnusableContent("the archive is truncated, or contains an invalid header")
            while self._stream.read(LARGEST_HEADER_BYTES):  # to the checksum at the end of the compressed stream
                pass

    def _member(self, info: tarfile.TarInfo) -> Member:
        names = names_of(info.name)
        kind = _KINDS.get(info.type)
        size = info.size if kind is MemberKind.FILE else 0
        sparse: list[tuple[int, int]] | None = cast("Any", info).sparse
        pieces = ((0, size),) if sparse is None else tuple(piece for piece in sparse if piece[1])
        modified = float(info.mtime)
        at = 0
        for offset, length in pieces:
            if length < 0 or offset < at or offset + length > size:
                raise UnusableContent(f"{'/'.join(names)!a}: its sparse segments exceed its size")
            at = offset + length
        return Member(
            names,
            kind,
            info.mode,
            modified if math.isfinite(modified) else 0.0,
            size,
            info.linkname,
            pieces,
            (_number(info.uid), _number(info.gid)),
            _attributes(info),
        )

    def content(self, length: int) -> Iterator[bytes]:
        """Yield the next bytes of the present member's content."""
        while length:
            chunk = self._stream.read(min(length, LARGEST_HEADER_BYTES))
            if not chunk:
                raise UnusableContent("the archive ends in the middle of a file")
            length -= len(chunk)
            yield chunk


class Header(tarfile.TarInfo):
    """A header. Common ones are parsed here, in a quarter of tarfile's time; tarfile parses all others."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        kind = bytes(buf[156:157])
        if kind not in _PLAIN or len(buf) != _BLOCK:
            return super().frombuf(buf, encoding, errors)
        try:
            mode, uid, gid, size, mtime, checksum = (_octal(buf[start:end]) for start, end in _NUMBERS)
        except ValueError:
            return super().frombuf(buf, encoding, errors)
        if checksum != sum(buf) - sum(buf[148:156]) + 8 * ord(" "):
            return super().frombuf(buf, encoding, errors)
        made = cls(_word(buf[:100], encoding, errors))
        made.mode, made.uid, made.gid, made.size, made.mtime, made.chksum = mode, uid, gid, size, mtime, checksum
        made.type, made.linkname = kind, _word(buf[157:257], encoding, errors)
        if kind == tarfile.DIRTYPE:
            made.name = made.name.rstrip("/")
        if prefix := _word(buf[345:500], encoding, errors):
            made.name = f"{prefix}/{made.name}"
        return made


_PLAIN: Final = frozenset({tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE})
_NUMBERS: Final = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (148, 156))


def _word(field: bytes | bytearray, encoding: str, errors: str) -> str:
    return bytes(field.partition(b"\0")[0]).decode(encoding, errors)


def _octal(field: bytes | bytearray) -> int:
    """Parse an octal number. Raises ValueError for any other form."""
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _number(owner: int) -> int:
    """Return a user or group that a file system accepts; `nobody` for an invalid one."""
    return owner if 0 <= owner < _NO_OWNER else _NOBODY


def _attributes(info: tarfile.TarInfo) -> tuple[tuple[str, bytes], ...]:
    """Return extended attributes in the formats of GNU tar, bsdtar and Go."""
    return tuple(
        (key.removeprefix(_ATTRIBUTE), str(value).encode("utf-8", "surrogateescape"))
        for key, value in info.pax_headers.items()
        if key.startswith(_ATTRIBUTE)
    )


def _decompressed(file: BinaryIO) -> BinaryIO:
    start = file.read(4)
    file.seek(0)
    if start.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))
    if start == _ZSTD:
        reader = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
        return reader.stream_reader(file, read_across_frames=True, closefd=False)
    return file
