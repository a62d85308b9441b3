"""The images of a release: complete and minimal content, their version, and the start of `unbounded up`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from scripts.deploy_files import ROOT
from scripts.packages import version
from scripts.release import make_wheels
from scripts.release_images import BASES, IMAGES, SITE, build, closure

from tests.support.paths import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(not (BASES / "amd64").is_dir(), reason="needs the base of scripts/release-tools"),
]
EMULATED: Final = ROOT / "tests" / "support" / "emulated.sh"
EPOCH: Final = 1_750_000_000
LIMIT_S: Final = 120.0
MOST_MB: Final = {
    "machina": 85,
    "metalman": 82,
    "machine-ops-controller": 120,
    "container-cloud": 75,
    "unbounded": 260,
    "unbounded-console": 250,
}
NOT_IN: Final = {
    "machina": (  # its unbounded-explain explains the operations of all executors
        "unbounded_lab",
        "unbounded_apiserver",
        "oci",
        "azure",
        "rich",
    ),
    "metalman": (
        "unbounded_lab",
        "unbounded_apiserver",
        "unbounded/machina",
        "unbounded/machineops",
        "oci",
    ),
    "machine-ops-controller": (
        "unbounded_lab",
        "unbounded_apiserver",
        "unbounded/metalman",
        "oci/database",
        "asyncssh",
    ),
    "container-cloud": (
        "unbounded_lab",
        "unbounded_apiserver",
        "unbounded/machina",
        "unbounded/metalman",
        "unbounded/machineops",
        "unbounded/agent",
        "oci",
        "rich",
    ),
    "unbounded": ("unbounded_lab", "oci/database"),
    "unbounded-console": ("unbounded_lab", "unbounded_apiserver", "unbounded/cli", "oci/database"),
}
EACH: Final = """\
import importlib, pkgutil, unbounded
for module in pkgutil.walk_packages(unbounded.__path__, "unbounded."):
    if not module.name.endswith("__main__") and "machineops.testing" not in module.name:  # which needs pytest
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "unbounded_lab":  # no image holds it
                raise
"""
PROVIDERS: Final = (
    "'from unbounded.machineops.installed_providers import load_all; "
    "found = load_all(); print(*sorted(found.providers), dict(found.unserved))'"
)
AS_ROOT: Final = (
    "mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; exec chroot --userspec={user} {root} {command}"
)


def unpack(archive: Path, root: Path, layout: Path) -> dict[str, Any]:
    """Unpack an image with all of its layers; its configuration."""
    layout.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(layout)], check=True)
    manifest = blob(layout, json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])
    root.mkdir()
    for layer in manifest["layers"]:
        command = ["tar", "-xzf", str(path_of(layout, layer["digest"])), "-C", str(root), "--numeric-owner"]
        subprocess.run(command, check=True)
    config = blob(layout, manifest["config"]["digest"])
    assert (config["os"], config["architecture"], len(config["rootfs"]["diff_ids"])) == ("linux", "amd64", 2)
    shutil.rmtree(layout)
    return dict(config["config"])


def path_of(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def blob(layout: Path, digest: str) -> dict[str, Any]:
    return dict(json.loads(path_of(layout, digest).read_text()))


def inside(root: Path, config: dict[str, Any], *command: str) -> list[str]:
    """The command that runs one in an image, as a container would."""
    words = " ".join(["/usr/bin/env", "-i", *config["Env"], *command])
    script = AS_ROOT.format(root=root, user=config["User"], command=words)
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]


def ran(root: Path, config: dict[str, Any], *command: str) -> str:
    done = subprocess.run(inside(root, config, *command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_an_image_holds_what_it_runs(name: str, tmp_path: Path) -> None:
    archive = build(name, make_wheels(tmp_path, EPOCH), tmp_path, tmp_path, epoch=EPOCH)
    root = tmp_path / "root"
    config = unpack(archive, root, tmp_path / "layout")
    site = root / SITE
    added = sum(path.stat().st_size for path in (root / "opt").rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{name}: {added / 1e6:.1f} MB above the base, {archive.stat().st_size / 1e6:.1f} MB packed")
    assert added < MOST_MB[name] * 1_000_000, f"{added / 1e6:.0f} MB above the base"
    assert [path for path in NOT_IN[name] if (site / path).exists()] == []
    (root / "each.py").write_text(EACH)
    ran(root, config, "/opt/unbounded/bin/python3", "/each.py")
    (program, *_) = config["Entrypoint"]
    assert ran(root, config, program, "--version") == f"{program} {version()}\n"
    if name == "machine-ops-controller":
        assert re.findall(r"^(\w+) \(", ran(root, config, program, "providers"), re.MULTILINE) == [
            "AzureVM",
            "OCIInstance",
        ]
    if name == "unbounded-console":
        assert ran(root, config, "/opt/unbounded/bin/python3", "-c", PROVIDERS) == "AzureVM OCIInstance {}\n"
    if name == "unbounded":
        with serving(root, config, tmp_path / "printed") as address:
            assert answer(f"{address}/readyz") == 200
    shutil.rmtree(root)


@pytest.mark.soak
@pytest.mark.timeout(1800, func_only=True)
def test_an_image_of_two_architectures_is_one_index_and_runs_on_both(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "release-tools", "arm64"], check=True)
    archive = build(
        *("machina", make_wheels(tmp_path, EPOCH), tmp_path, tmp_path), epoch=EPOCH, architectures=("amd64", "arm64")
    )
    layout = tmp_path / "layout"
    layout.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(layout)], check=True)
    (whole,) = json.loads((layout / "index.json").read_text())["manifests"]
    images = blob(layout, whole["digest"])["manifests"]
    assert [one["platform"] for one in images] == [{"architecture": one, "os": "linux"} for one in ("amd64", "arm64")]
    root = tmp_path / "root"
    root.mkdir()
    manifest = blob(layout, images[1]["digest"])
    assert blob(layout, manifest["config"]["digest"])["architecture"] == "arm64"
    for layer in manifest["layers"]:
        subprocess.run(["tar", "-xzf", str(path_of(layout, layer["digest"])), "-C", str(root)], check=True)
    programs = [path for path in (*root.rglob("*.so"), root / "usr/bin/python3.11") if not path.is_symlink()]
    assert len(programs) > 20
    assert [path for path in programs if path.read_bytes()[18:20] != b"\xb7\x00"] == []
    command = [str(EMULATED), str(root), "/opt/unbounded/bin/machina", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"machina {version()}\n"), done.stderr


@contextmanager
def serving(root: Path, config: dict[str, Any], printed: Path) -> Iterator[str]:
    """`unbounded up` as the image starts it, but on a free port of loopback; the address of its health."""
    words = [*config["Entrypoint"], *config["Cmd"]]
    words = ["127.0.0.1" if one == "0.0.0.0" else "0" if one == "6443" else one for one in words]
    with printed.open("w") as file:
        process = subprocess.Popen(
            inside(root, config, *words), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + LIMIT_S
        while (found := re.search(r"health\s+(\S+)/readyz", printed.read_text())) is None:
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < until, printed.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the change of user has cleared the signal of --kill-child
        process.wait()


def answer(url: str) -> int:
    """The status, once it is 200 or the time is up."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, context=ssl.create_default_context(), timeout=10) as got:
                return int(got.status)
        except OSError as error:
            if time.monotonic() > until:
                return int(getattr(error, "code", 0))
            time.sleep(0.2)


def test_imports_are_followed_wherever_they_stand() -> None:
    own, others = closure("unbounded.machina.main")
    assert {"unbounded.machina.controller", "unbounded.kube.process", "unbounded.join.agent_install"} <= own
    assert {"aiohttp", "asyncssh", "msgspec", "yaml"} <= others
    assert not [one for one in own if one.startswith(("unbounded_lab", "unbounded_apiserver", "unbounded.cli"))]


@pytest.mark.soak
def test_two_releases_are_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        command = [sys.executable, "-m", "scripts.release", str(tmp_path / name)]
        subprocess.run(command, check=True, env=environment())
    assert (tmp_path / "one" / "SHA256SUMS").read_text() == (tmp_path / "two" / "SHA256SUMS").read_text()
