from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import tempfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fetch.layers import COMPRESSIONS, entry, files, hardlink, symlink, tar
from unbounded.api.failures import Failure
from unbounded.fetch.archive import Header
from unbounded.fetch.failures import TooLarge, UnusableContent
from unbounded.fetch.unpack import Stopped, StopSignal, UnpackLimits, unpack


def unpacked(folder: Path, *layers: bytes, only: str = "", bounds: UnpackLimits | None = None) -> Path:
    paths = []
    for number, layer in enumerate(layers):
        paths.append(folder / f"layer{number}")
        paths[-1].write_bytes(layer)
    target = folder / "images" / "image"
    target.parent.mkdir(exist_ok=True)
    unpack(paths, target, only=only, bounds=bounds)
    return target


def seen(root: Path) -> dict[str, bytes | str | None]:
    """Return the content of a tree: content of files, targets of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_layer_is_unpacked_however_it_is_compressed(tmp_path: Path, compression: str) -> None:
    content = os.urandom(700_001)
    layer = tar(
        entry("disk"), entry("disk/big", content), symlink("disk/link", "big"), hardlink("disk/same", "disk/big")
    )
    root = unpacked(tmp_path, COMPRESSIONS[compression](layer))
    assert seen(root) == {"disk": None, "disk/big": content, "disk/link": "big", "disk/same": content}
    assert (root / "disk/same").stat().st_ino == (root / "disk/big").stat().st_ino


def test_several_gzip_members_and_missing_directories_are_taken(tmp_path: Path) -> None:
    layer = files({"a/b/c": b"x" * 2000})
    assert seen(unpacked(tmp_path, gzip.compress(layer[:1000]) + gzip.compress(layer[1000:])))["a/b/c"] == b"x" * 2000


def test_later_layers_replace_hide_and_empty_what_lower_ones_have(tmp_path: Path) -> None:
    first = files({"keep": b"1", "gone": b"1", "changed": b"1", "folder/a": b"1", "folder/sub/b": b"1", "dir/x": b"1"})
    own = entry("folder/sub/own", b"2")
    hides = (own, entry(".wh.gone", b""), entry("folder/.wh..wh..opq", b""), entry("changed", b"2"), entry("dir", b"2"))
    assert seen(unpacked(tmp_path, first, tar(*hides))) == {
        "keep": b"1",
        "changed": b"2",
        "dir": b"2",
        "folder": None,
        "folder/sub": None,
        "folder/sub/own": b"2",
    }


def test_a_whiteout_never_hides_what_its_own_layer_brings(tmp_path: Path) -> None:
    first = files({"a/old": b"1", "b": b"1"})
    second = tar(entry("a/new", b"2"), entry(".wh.a", b""), entry("b", b"2"), entry(".wh.b", b""))
    assert seen(unpacked(tmp_path, first, second)) == {"a": None, "a/new": b"2", "b": b"2"}


def test_only_the_wanted_directory_is_unpacked_and_it_has_to_be_there(tmp_path: Path) -> None:
    layer = files({"disk/a": b"1", "diskette/b": b"1", "etc/passwd": b"1"})
    assert seen(unpacked(tmp_path, layer, only="disk")) == {"disk": None, "disk/a": b"1"}
    with pytest.raises(UnusableContent, match="no directory /nowhere"):
        unpacked(tmp_path, layer, only="nowhere")


def test_modes_are_kept_but_for_those_that_give_rights(tmp_path: Path) -> None:
    layer = tar(entry("run", b"x", mode=0o6755), entry("closed", mode=0), entry("closed/file", b"x", mode=0o000))
    root = unpacked(tmp_path, layer)
    modes = {name: (root / name).stat().st_mode & 0o7777 for name in ("run", "closed", "closed/file")}
    assert modes == {"run": 0o755, "closed": 0o700, "closed/file": 0o600}


def test_an_absolute_link_means_the_root_of_the_image(tmp_path: Path) -> None:
    root = unpacked(tmp_path, tar(entry("a/b", b"x"), symlink("c/d/link", "/a/b")))
    assert (root / "c/d/link").read_bytes() == b"x"
    assert os.readlink(root / "c/d/link") == "../../a/b"


@pytest.mark.slow
def test_sparse_files_get_their_holes_back(tmp_path: Path) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    packed = tmp_path / "sparse.tar"
    for form in ("gnu", "posix"):
        status = os.spawnlp(
            os.P_WAIT, "tar", "tar", "-C", str(tmp_path), "--format", form, "--sparse", "-cf", str(packed), "sparse"
        )
        assert status == 0
        assert packed.stat().st_size < 1 << 20, "tar stored the holes"
        root = unpacked(tmp_path, packed.read_bytes())
        assert (root / "sparse").read_bytes() == source.read_bytes()
        (root / "sparse").unlink()
        root.rmdir()


def changed(layer: bytes, field: slice, content: bytes) -> bytes:
    """A tar whose first header has another content in one field, and a right checksum."""
    header = bytearray(layer[:512])
    header[field] = content.ljust(field.stop - field.start, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + layer[512:]


SIZE = slice(124, 136)
NESTED_PAX = changed(tar(entry("x", b"")), slice(156, 157), b"x")[:512] * 3000

MALICIOUS = {
    "leads out of the tree": files({"../evil": b"x"}),
    "leads out of the tree in the middle": files({"a/../../evil": b"x"}),
    "a hard link upwards": tar(hardlink("evil", "../../outside")),
    "a hard link to an absolute place": tar(hardlink("evil", "/etc/passwd")),
    "a hard link to nothing": tar(hardlink("evil", "nothing")),
    "a hard link to itself": tar(entry("a", b"x"), hardlink("a", "a")),
    "a hard link over a directory above its source": tar(entry("a/b", b"x"), hardlink("a", "a/b")),
    "a hard link to a symbolic link": tar(entry("a/b"), symlink("a/b/c", "../../x"), hardlink("evil", "a/b/c")),
    "a symbolic link upwards": tar(symlink("evil", "../outside")),
    "a symbolic link that goes down and up": tar(symlink("a/b", "c/../../../x")),
    "writing through a symbolic link": tar(symlink("a", "b"), entry("b"), entry("a/evil", b"x")),
    "writing through an absolute symbolic link": tar(symlink("a", "/tmp"), entry("a/evil", b"x")),
    "writing below a file": tar(entry("a", b"x"), entry("a/b", b"x")),
    "a character device": tar(entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a block device": tar(entry("sda", type=tarfile.BLKTYPE, devmajor=8)),
    "a FIFO": tar(entry("pipe", type=tarfile.FIFOTYPE)),
    "a kind that nobody knows": changed(files({"x": b""}), slice(156, 157), b"Q"),
    "a whiteout of the directory above": tar(entry("a/.wh...", b"")),
    "a whiteout without a name": tar(entry("a/.wh.", b"")),
    "a file below a whiteout": files({".wh.a/b": b"x"}),
    "a name that is too long": files({"n" * 256: b"x"}),
    "a path that is too deep": files({"d/" * 129 + "x": b"x"}),
    "a path that is too long": files({("n" * 200 + "/") * 30: b"x"}),
    "a header that is too long": tar(entry("x", b"", pax_headers={"comment": "c" * 300_000})),
    "headers within headers": NESTED_PAX,
    "a negative size": changed(files({"x": b"y"}), SIZE, b"\xff" * 12),
    "more content than there is": changed(files({"x": b"y"}), SIZE, b"00000777777\0"),
    "a negative size in an extended header": tar(entry("x", b"", pax_headers={"size": "-1536"})),
    "a modification that is no time": tar(entry("x", b"", pax_headers={"mtime": "soon"}), entry("../x", b"")),
    "cut off": files({"x": b"y" * 5000})[:3000],
    "garbage between members": files({"x": b"y"})[:1024] + b"garbage " * 64 + files({"z": b""}),
    "no archive": b"<html>not found</html>" * 100,
    "nothing": b"",
    "gzip cut off": gzip.compress(files({"x": os.urandom(5000)}))[:-900],
    "gzip with another checksum": gzip.compress(files({"x": b"y"}))[:-8] + struct.pack("<II", 1, 10240),
    "zstd cut off": COMPRESSIONS["tar+zstd"](files({"x": os.urandom(5000)}))[:-900],
    "zstd garbage": b"\x28\xb5\x2f\xfd" + b"garbage " * 64,
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_what_is_not_safe_or_not_whole_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableContent, match="layer 1: "):
        unpacked(tmp_path, MALICIOUS[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "layer0"]
    assert not list((tmp_path / "images").iterdir())


BOMBS = {
    "gzip": gzip.compress(files({"zeros": bytes(3 << 20)})),
    "zstd": COMPRESSIONS["tar+zstd"](files({"zeros": bytes(3 << 20)})),
    "after the end": gzip.compress(files({"x": b"y"}) + bytes(3 << 20)),
    "many members": files({f"{number}": b"" for number in range(200)}),
    "a large hole": changed(files({"x": b""}), SIZE, b"77777777777\0"),
    "not wanted, and large all the same": gzip.compress(files({"elsewhere": bytes(3 << 20)})),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_at_the_limits(tmp_path: Path, name: str) -> None:
    with pytest.raises(TooLarge):
        unpacked(tmp_path, BOMBS[name], bounds=UnpackLimits(bytes=1 << 20, members=100))
    assert not list((tmp_path / "images").iterdir())


def test_the_limit_is_for_all_layers_together(tmp_path: Path) -> None:
    layer = gzip.compress(files({"zeros": bytes(3 << 19)}))
    unpacked(tmp_path, layer, bounds=UnpackLimits(bytes=1 << 21, members=100))
    (tmp_path / "images" / "image" / "zeros").unlink()
    (tmp_path / "images" / "image").rmdir()
    with pytest.raises(TooLarge, match="layer 2"):
        unpacked(tmp_path, layer, layer, bounds=UnpackLimits(bytes=1 << 21, members=100))


def test_unpacking_stops_on_its_signal(tmp_path: Path) -> None:
    stop = StopSignal()
    stop.event.set()
    layer = tmp_path / "layer"
    layer.write_bytes(files({"x": b"y"}))
    with pytest.raises(Stopped):
        unpack([layer], tmp_path / "image", stop=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


NAMES = st.lists(st.sampled_from(["..", ".", "a", "b", "", ".wh.a", ".wh..wh..opq", "etc"]), max_size=5).map("/".join)
MEMBERS = st.one_of(
    st.builds(lambda name: entry(name, b"new"), NAMES),
    st.builds(entry, NAMES),
    st.builds(symlink, NAMES, NAMES.map(lambda path: path or "a")),
    st.builds(symlink, NAMES, NAMES.map(lambda path: "/" + path)),
    st.builds(hardlink, NAMES, NAMES),
)


def inside(root: Path) -> bool:
    """Return whether every link of a tree leads into it."""
    real = root.resolve()
    links = [path for path in root.rglob("*") if path.is_symlink()]
    return all(Path(os.path.realpath(link)).is_relative_to(real) for link in links)


@pytest.mark.slow
@given(st.lists(st.lists(MEMBERS, max_size=8), min_size=1, max_size=3))
def test_no_sequence_of_members_touches_or_points_to_anything_outside(
    layers: list[list[tuple[tarfile.TarInfo, bytes]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deep" / "er"
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(b"old")
        try:
            root = unpacked(folder, *(tar(*members) for members in layers))
        except Failure:
            assert not list((folder / "images").iterdir())
        else:
            assert inside(root)
        outside = {path.name for path in (*folder.iterdir(), *Path(name).iterdir())}
        assert outside == {"deep", "a", "images", *(f"layer{number}" for number in range(len(layers)))}
        assert (folder / "a").read_bytes() == b"old"


@pytest.mark.slow
@given(st.data())
def test_a_damaged_archive_is_refused_or_unpacked_and_never_crashes(data: st.DataObject) -> None:
    layer = bytearray(
        tar(entry("a/b", b"x" * 600), symlink("c", "a/b"), entry("d", b"", pax_headers={"comment": "hm"}))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        layer[data.draw(st.integers(0, len(layer) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as name:
        try:
            assert inside(unpacked(Path(name), bytes(layer)))
        except Failure:
            assert not list((Path(name) / "images").iterdir())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_members(tmp_path: Path) -> None:
    import tracemalloc

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for _ in range(4_000):
            archive.addfile(entry("same", b"")[0])
    (tmp_path / "layer").write_bytes(gzip.compress(buffer.getvalue(), 1))
    del archive, buffer
    tracemalloc.start()
    try:
        unpack([tmp_path / "layer"], tmp_path / "image", only="", bounds=UnpackLimits(1 << 20, 30_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, peak


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=120)


@pytest.mark.slow
@given(
    name=NAMES,
    link=NAMES,
    numbers=st.tuples(*[st.integers(0, 1 << 40)] * 5),
    kind=st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"5", b"L", b"S", b"x", b"g"]),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT]),
    damage=st.none() | st.tuples(st.integers(0, 511), st.integers(1, 255)),
)
def test_headers_are_read_as_tarfile_reads_them(
    name: str, link: str, numbers: tuple[int, ...], kind: bytes, form: Literal[0, 1], damage: tuple[int, int] | None
) -> None:
    info = tarfile.TarInfo(name)
    info.linkname, info.type = link, kind
    info.mode, info.uid, info.gid, info.size, info.mtime = numbers
    try:
        block = bytearray(info.tobuf(form, "utf-8", "surrogateescape")[-512:])
    except ValueError:  # not in this format
        return
    if damage is not None:
        block[damage[0]] ^= damage[1]
    assert header(Header, bytes(block)) == header(tarfile.TarInfo, bytes(block))


def header(reader: type[tarfile.TarInfo], block: bytes) -> dict[str, object] | str:
    """Return the used fields of a header, or its error."""
    try:
        found = reader.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        return type(error).__name__
    used = ("name", "type", "linkname", "mode", "uid", "gid", "size", "mtime")
    return {name: getattr(found, name) for name in used}
