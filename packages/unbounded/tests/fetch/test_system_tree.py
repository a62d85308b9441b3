from __future__ import annotations

import os
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.fetch.layers import entry, files, hardlink, symlink, tar
from tests.fetch.test_unpack import seen
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.system_tree import SystemTree, sync_file_system
from unbounded.fetch.unpack import unpack

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="owners need root")
pytestmark = [pytest.mark.root, root_only]


def unpacked(folder: Path, *layers: bytes) -> Path:
    paths = []
    for number, layer in enumerate(layers):
        paths.append(folder / f"layer{number}")
        paths[-1].write_bytes(layer)
    unpack(paths, folder / "root", tree=SystemTree)
    return folder / "root"


def test_owners_modes_times_and_attributes_are_kept(tmp_path: Path) -> None:
    capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    text = capability.decode("utf-8", "surrogateescape")
    layer = tar(
        entry("tmp", mode=0o1777),
        entry("usr/bin/su", b"su", mode=0o4755, mtime=1_000_000),
        entry("home/u", uid=1000, gid=1001, mode=0o700),
        entry("home/u/f", b"", uid=1000, gid=1001, mode=0o600),
        entry("usr/bin/ping", b"ping", pax_headers={"SCHILY.xattr.security.capability": text}),
        symlink("usr/bin/link", "ping"),
    )
    root = unpacked(tmp_path, layer)
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    su = (root / "usr/bin/su").stat()
    assert (stat.S_IMODE(su.st_mode), su.st_mtime) == (0o4755, 1_000_000)
    for name in ("home/u", "home/u/f"):
        held = (root / name).stat()
        assert (held.st_uid, held.st_gid) == (1000, 1001)
    assert os.getxattr(root / "usr/bin/ping", "security.capability") == capability


def test_links_stay_as_they_were_and_lead_nowhere_but_below_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = unpacked(
        tmp_path,
        tar(
            entry("usr/bin"),
            symlink("bin", "usr/bin"),
            symlink("etc/alternatives/x", "/usr/bin/x"),
            symlink("var/run", "../../../../../run"),
            symlink("trap", str(outside)),
        ),
        tar(entry("bin/tool", b"1"), entry("var/run/f", b"2"), entry("trap/f", b"3"), hardlink("bin/same", "bin/tool")),
    )
    found = seen(root)
    assert found["usr/bin/tool"] == found["usr/bin/same"] == b"1"
    assert (found["bin"], found["etc/alternatives/x"]) == ("usr/bin", "/usr/bin/x")
    assert found["run/f"] == b"2"
    assert found[str(outside).lstrip("/") + "/f"] == b"3"  # as the root's own processes see it
    assert list(outside.iterdir()) == []


def test_a_directory_in_a_later_layer_takes_the_place_of_a_link(tmp_path: Path) -> None:
    root = unpacked(tmp_path, tar(symlink("lib", "usr/lib")), tar(entry("lib"), entry("lib/a", b"1")))
    assert seen(root) == {"lib": None, "lib/a": b"1"}


def test_whiteouts_reach_through_links(tmp_path: Path) -> None:
    first = tar(entry("usr/bin/old", b"1"), entry("usr/bin/kept", b"1"), symlink("bin", "usr/bin"))
    root = unpacked(tmp_path, first, tar(entry("bin/.wh.old", b"")))
    assert "usr/bin/old" not in seen(root)
    assert seen(root)["usr/bin/kept"] == b"1"


def test_devices_below_dev_are_left_out_and_others_are_refused(tmp_path: Path) -> None:
    null = entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    assert seen(unpacked(tmp_path, tar(entry("dev"), null))) == {"dev": None}
    (tmp_path / "other").mkdir()
    with pytest.raises(UnusableContent, match="devices and other special files"):
        unpacked(tmp_path / "other", tar(entry("etc/sda", type=tarfile.BLKTYPE, devmajor=8)))


@pytest.mark.parametrize(
    ("first", "path", "words"),
    [
        pytest.param(tar(symlink("a", "b"), symlink("b", "a")), "a/f", "form a loop", id="a-circle-of-links"),
        pytest.param(files({"a": b""}), "a/f", "is not a directory", id="a-file-on-the-way"),
        pytest.param(tar(symlink("a", "")), "f", "link without a target", id="an-empty-link"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path, first: bytes, path: str, words: str) -> None:
    with pytest.raises(UnusableContent, match=words):
        unpacked(tmp_path, first, files({path: b"x"}))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("layer")] == []


@pytest.mark.slow
def test_several_trees_of_one_root_may_make_the_same_directories_at_once(tmp_path: Path) -> None:
    def fill(number: int) -> None:
        with closing(SystemTree(tmp_path)) as tree:
            for name in range(100):
                tree.put(f"/a/{name}/b/{number}", b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(8)))
    assert len(list(tmp_path.glob("a/*/b/*"))) == 800


def test_files_and_links_are_put_in_place_below_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"the host's")
    root = unpacked(tmp_path, tar(symlink("etc/resolv.conf", str(outside)), symlink("sbin", "/usr/sbin")))
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3_000_000))
    with closing(SystemTree(root)) as tree:
        assert tree.read("/etc/resolv.conf") is None
        tree.put("/etc/resolv.conf", b"nameserver 10.0.0.1\n", mode=0o640)
        tree.copy(big, "/sbin/tool")
        tree.folder("/var/lib/x", mode=0o700)
        tree.link("/etc/init", "/sbin/tool")
        assert tree.read("/etc/resolv.conf") == b"nameserver 10.0.0.1\n"
        assert tree.read("/etc/init/none") is None
        assert tree.links("/etc") == {"init": "/sbin/tool"}
        assert tree.links("/nowhere") == {}
        assert tree.has("/sbin/tool")
        assert tree.has("/etc/init")
        assert not tree.has("/etc/none")
        tree.unlink("/etc/init")
        tree.unlink("/etc/init")
        assert not tree.has("/etc/init")
    sync_file_system(root)
    assert outside.read_bytes() == b"the host's"
    assert (root / "usr/sbin/tool").read_bytes() == big.read_bytes()
    assert stat.S_IMODE((root / "usr/sbin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "etc/resolv.conf").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "var/lib/x").stat().st_mode) == 0o700
