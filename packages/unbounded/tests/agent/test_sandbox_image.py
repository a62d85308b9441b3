"""The sandbox image: our own program and archive, third-party archives, and crictl's output about a sandbox."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.layers import files
from tests.support.hosts.mirror import sandbox_image
from unbounded.agent.node.containerd import archive_fault, crictl_error, pod_config

CONFIG = {"architecture": "arm64", "os": "linux"}


def archive(**documents: Any) -> bytes:
    """Files by name, with `__` for a slash and `_` for a point."""
    names = {name.replace("__", "/").replace("_", "."): json.dumps(one).encode() for name, one in documents.items()}
    return files(names)


def described(name: str) -> dict[str, str]:
    return {"digest": f"sha256:{name}"}


DOCKER = archive(manifest_json=[{"Config": "config.json"}], config_json=CONFIG)
NESTED = archive(
    index_json={"manifests": [described("all")]},
    blobs__sha256__all={"manifests": [described("one"), described("two")]},
    blobs__sha256__one={"config": described("arm")},
    blobs__sha256__two={"config": described("amd")},
    blobs__sha256__arm=CONFIG,
    blobs__sha256__amd={"architecture": "amd64"},
)


def test_archives_of_other_tools_are_read_as_well() -> None:
    assert archive_fault(sandbox_image(), "amd64") == ""
    assert archive_fault(DOCKER, "arm64") == ""
    assert archive_fault(NESTED, "amd64") == archive_fault(NESTED, "arm64") == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is missing in the node image and at the artifact mirror (Downloads.Sandbox)"),
        (DOCKER, "is for arm64, but this host is amd64"),
        (b"<html>", "is not an image archive"),
        (files({"README": b""}), "is not an image archive"),
        (files({"index.json": b"{"}), "is not an image archive"),
        (archive(index_json={"manifests": [described("gone")]}), "is not an image archive"),
        (archive(index_json={"manifests": []}), "is for no architecture"),
    ],
    ids=["none", "architecture", "html", "no index", "no JSON", "no blob", "empty"],
)
def test_what_is_no_image_for_this_host_is_refused(content: bytes | None, words: str) -> None:
    assert words in archive_fault(content, "amd64")


@pytest.mark.slow
def test_equal_sources_make_an_equal_archive() -> None:
    again = sandbox_image.__wrapped__()
    assert again == sandbox_image()


# The words are those of crictl 1.36 with containerd 1.6.20, on a host with both
FAILED = (
    'time="2030-01-01T00:00:00Z" level=warning msg="Config \\"/etc/crictl.yaml\\" does not exist"\n'
    'time="2030-01-01T00:00:00Z" level=error msg="run pod sandbox: rpc error: code = Unknown desc = failed to setup '
    "sandbox files: failed to generate sandbox hosts file "
    '\\"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/08c98e73/hosts\\": open /etc/hosts: no such file or '
    'directory"\n'
)


def test_of_what_crictl_logs_its_error_counts() -> None:
    said = crictl_error(FAILED)
    assert said.startswith("run pod sandbox: rpc error: code = Unknown desc = failed to setup sandbox files")
    assert said.endswith('sandboxes/08c98e73/hosts": open /etc/hosts: no such file or directory')
    assert crictl_error("exec format error\n") == "exec format error"


def test_the_sandbox_of_the_proof_is_in_the_network_of_the_host() -> None:
    config = json.loads(pod_config("uid-1"))
    assert config["metadata"]["uid"] == "uid-1"
    assert config["linux"]["security_context"]["namespace_options"] == {"network": 2}
    seccomp = config["linux"]["security_context"]["seccomp"]
    assert seccomp == {"profile_type": 0}, "RuntimeDefault of the CRI, as kubelet asks for it: a runc may not have it"
    assert config["linux"]["cgroup_parent"].endswith(".slice"), "the systemd driver of cgroups wants a slice"


@pytest.fixture
def pause(tmp_path: Path) -> Path:
    """The program in the archive."""
    with tarfile.open(fileobj=io.BytesIO(sandbox_image())) as outer:
        for member in outer.getmembers():
            blob = outer.extractfile(member)
            content = blob.read() if blob else b""
            if b"ustar" in content[:512]:
                subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=content, check=True)
    return tmp_path / "pause"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_pause_reaps_orphans_and_ends_on_a_signal(pause: Path, told: signal.Signals) -> None:
    script = f"(sleep 0.05 & echo $! >&2) & exec {pause}"  # the sleep outlives its parent, and is left to process 1
    unshared = ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script)
    with subprocess.Popen(unshared, stderr=subprocess.PIPE) as outer:
        assert outer.stderr is not None
        outer.stderr.readline()
        first = _child_of(outer.pid)
        _until(lambda: Path(f"/proc/{first}/comm").read_text() == "pause\n")
        _until(lambda: not _children(first))
        assert outer.poll() is None, "it stays while nothing is left"
        os.kill(first, told)
        assert outer.wait(60) == 0


def _children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _child_of(process: int) -> int:
    _until(lambda: bool(_children(process)))
    return _children(process)[0]


def _until(so: Any) -> None:
    limit = time.monotonic() + 60
    while not so():
        assert time.monotonic() < limit
        time.sleep(0.005)
