"""Installation of the agent: the install script, with a release that records its arguments; and the wrappers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.join.releases import AGENT, Releases, releases, tarball
from tests.join.signing import ANOTHER, PUBLIC_KEY, signature, word_of
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth, UpgradeConfig, config_text
from unbounded.join.agent_install import AgentOrigin, HostSetup, install_script, standalone_script
from unbounded.machina.provisioning.model import cause_of

pytestmark = pytest.mark.slow

NAME = f"unbounded-agent-linux-{ {'x86_64': 'amd64', 'aarch64': 'arm64'}[platform.machine()] }.tar.gz"
TOKEN = "abcdef.0123456789abcdef"
CONFIG = AgentConfig(
    machine_name="m1",
    cluster=JoinedCluster(version="1.34.0"),
    kubelet=Kubelet(
        api_server="https://10.0.0.1:6443", auth=KubeletAuth(bootstrap_token=TOKEN), labels={"a": "'$(id)\""}
    ),
)
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Host:
    """A folder in which the script puts what it would put into /var/lib/unbounded.

    Args:
        tools: programs that it may use; empty for all.
    """

    def __init__(self, folder: Path, served: Releases) -> None:
        self.folder = folder
        self.served = served
        self.place = folder / "lib"
        self.told = folder / "told"
        self.told.mkdir()
        self.config = folder / "agent.json"
        self.config.write_text('{"MachineName": "m1"}')
        self.path = PATH

    def release(self, then: str = "exit 0", *, folder: bool = True) -> bytes:
        return tarball(AGENT.format(told=self.told, then=then), folder=folder)

    def only(self, *tools: str) -> None:
        """PATH holds these, and what every host has."""
        folder = self.folder / "bin"
        folder.mkdir()
        for tool in (
            *("bash", "sh", "uname", "mkdir", "mktemp", "rm", "tar", "gzip", "chmod", "tail", "grep", "cp", "env"),
            *("sleep", "cat", "kill", "sha256sum", *tools),
        ):
            found = shutil.which(tool)
            assert found, tool
            (folder / tool).symlink_to(found)
        self.path = str(folder)

    @property
    def digest(self) -> str:
        """Of what is served, which comes over plain http."""
        return hashlib.sha256(next(iter(self.served.files.values()), b"")).hexdigest()

    def environ(self, **more: str) -> dict[str, str]:
        return {
            "PATH": self.path,
            "UNBOUNDED_AGENT_CONFIG_FILE": str(self.config),
            "UNBOUNDED_INSTALL_DIR": str(self.place),
            "UNBOUNDED_INSTALL_PAUSE_S": "0",
            "AGENT_BASE_URL": self.served.base,
            "AGENT_SHA256": self.digest,
            **more,
        }

    def install(self, script: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", str(self.script(script)), **more)

    def script(self, script: str | None = None) -> Path:
        text = script or install_script()
        if self.path != PATH:  # the script adds folders, for hosts whose PATH is short
            text = text.replace('export PATH="$PATH:', 'export PATH="$PATH" PATHS_LEFT_OUT="')
        file = self.folder / "install.sh"
        file.write_text(text)
        return file

    def run(self, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which(program) or program, *arguments],
            env=self.environ(**more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def left(self) -> list[str]:
        """Return what stays in its folder."""
        return sorted(one.name for one in self.place.iterdir()) if self.place.is_dir() else []

    def environment(self) -> dict[str, str]:
        """Of the agent."""
        return dict(line.split("=", 1) for line in (self.told / "environment").read_text().splitlines() if "=" in line)


@pytest.fixture(scope="module")
def server() -> Iterator[Releases]:
    with releases() as served:
        yield served


@pytest.fixture
def host(server: Releases, tmp_path: Path) -> Host:
    server.files.clear()
    server.asked.clear()
    server.wrong.clear()
    server.cuts, server.ranges = 0, True
    return Host(tmp_path, server)


@pytest.mark.parametrize("folder", [True, False], ids=["directory", "executable"])
@pytest.mark.parametrize("tool", ["curl", "wget"])
def test_the_agent_is_fetched_started_and_nothing_of_the_way_is_left(host: Host, tool: str, folder: bool) -> None:
    host.served.files[f"/latest/download/{NAME}"] = host.release("exit 7", folder=folder)
    host.only(tool)
    ran = host.install()
    assert ran.returncode == 7, ran.stderr  # the agent's
    assert ran.stdout.splitlines()[-2:] == ["starting the agent", "agent: start"]
    assert (host.told / "config").read_text() == host.config.read_text()
    assert host.left == []


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"AGENT_VERSION": "v1.2.3"}, f"/download/v1.2.3/{NAME}"),
        ({}, f"/latest/download/{NAME}"),
        ({"AGENT_URL": "{base}/mine/a.tar.gz?sig=hush", "AGENT_VERSION": "v9"}, "/mine/a.tar.gz"),
        ({"AGENT_BASE_URL": "{base}/mirror/"}, f"/mirror/latest/download/{NAME}"),
    ],
    ids=["version", "latest", "url", "base"],
)
def test_where_the_agent_comes_from(host: Host, told: dict[str, str], path: str) -> None:
    host.served.files[path] = host.release()
    ran = host.install(**{name: value.format(base=host.served.base) for name, value in told.items()})
    assert ran.returncode == 0, ran.stderr
    assert [asked.partition("?")[0] for asked, _ in host.served.asked] == [path]
    assert "hush" not in ran.stdout + ran.stderr
    assert not [name for name in host.environment() if name in {"AGENT_URL", "AGENT_VERSION", "AGENT_BASE_URL"}]


@pytest.mark.parametrize("tool", ["curl", "wget"])
@pytest.mark.parametrize("ranges", [True, False], ids=["goes on", "begins anew"])
def test_a_download_that_breaks_off_goes_on(host: Host, tool: str, ranges: bool) -> None:
    host.served.files[f"/latest/download/{NAME}"] = host.release()
    host.served.cuts, host.served.ranges, host.served.wrong = 2, ranges, [503]
    host.only(tool)
    ran = host.install()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("broke off") >= 3
    assert any(asked for _, asked in host.served.asked)


@pytest.mark.parametrize("tool", ["curl", "wget"])
def test_what_is_not_there_is_asked_for_once_and_said(host: Host, tool: str) -> None:
    host.only(tool)
    ran = host.install(AGENT_URL=f"{host.served.base}/gone.tar.gz?sig=hush")
    assert ran.returncode == 1
    assert "error: " in ran.stderr
    assert "/gone.tar.gz cannot be had" in ran.stderr
    assert "404" in ran.stderr
    assert cause_of(ran.stderr) == "ReleaseNotFound"
    assert "hush" not in ran.stdout + ran.stderr
    assert len(host.served.asked) == 1
    assert host.left == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of one's own need root")
@pytest.mark.parametrize(("tool", "room"), [("curl", "128k"), ("wget", "128k"), ("curl", "2m")])
def test_a_full_disk_is_a_cause_of_its_own(host: Host, tool: str, room: str) -> None:
    """While the tarball is written, or while it is unpacked: 1 MiB that do not compress, and 8 that do."""
    host.only(tool)
    agent = "#!/bin/sh\n" + random.Random(1).randbytes(500_000).hex() + "\0" * (8 << 20)
    host.served.files[f"/latest/download/{NAME}"] = tarball(agent, folder=True)
    host.place.mkdir()
    full = f"{shutil.which('mount')} -t tmpfs -o size={room} tmpfs {host.place} && exec bash {host.script()}"
    ran = host.run("unshare", "--mount", "sh", "-c", full)
    assert ran.returncode == 1, ran.stderr
    assert cause_of(ran.stderr) == "DiskFull", ran.stderr
    assert len(host.served.asked) == 1


def test_what_cannot_be_reached_is_given_up_after_some_tries(host: Host) -> None:
    ran = host.install(AGENT_BASE_URL="http://127.0.0.1:1")
    assert ran.returncode == 1
    assert "tried 5 times" in ran.stderr


def test_a_digest_has_to_be_met(host: Host) -> None:
    packed = host.release()
    host.served.files[f"/latest/download/{NAME}"] = packed
    right = hashlib.sha256(packed).hexdigest()
    assert host.install(AGENT_SHA256=f"sha256:{right.upper()}").returncode == 0
    (host.told / "config").unlink()
    ran = host.install(AGENT_SHA256="0" * 64)
    assert ran.returncode == 1
    assert right in ran.stderr
    assert not (host.told / "config").exists()


def keyed(host: Host, key: str) -> None:
    """Have the agent's configuration name this public key."""
    host.config.write_text(config_text(AgentConfig(machine_name="m1", upgrade=UpgradeConfig(public_key=key))))


def test_with_a_key_a_release_has_to_be_signed_by_it(host: Host) -> None:
    packed, path = host.release(), f"/latest/download/{NAME}"
    host.served.files[path] = packed
    host.only("curl", "openssl")
    keyed(host, PUBLIC_KEY)
    named = f"Upgrade.PublicKey of {host.config} (setting agent-public-key)"
    unsigned = host.install()
    assert unsigned.returncode == 1
    assert f"{path}.sig cannot be had" in unsigned.stderr
    assert f"{named} demands a signature" in unsigned.stderr
    for wrong in (signature(packed, ANOTHER), signature(b"other"), b"<html>"):
        host.served.files[f"{path}.sig"] = wrong
        ran = host.install()
        assert (ran.returncode, ran.stdout.count("starting")) == (1, 0)
        assert f"no good signature: it is of another file, or by another key than {named}" in ran.stderr
    assert not (host.told / "config").exists()
    assert host.left == []
    host.served.files[f"{path}.sig"] = signature(packed)
    ran = host.install()
    assert ran.returncode == 0, ran.stderr


def test_a_key_needs_openssl(host: Host) -> None:
    host.only("curl")
    keyed(host, PUBLIC_KEY)
    ran = host.install()
    assert ran.returncode == 1
    assert "openssl is not installed on this host: Upgrade.PublicKey" in ran.stderr
    assert cause_of(ran.stderr) == "CommandMissing"


P384: Final = word_of(ec.generate_private_key(ec.SECP384R1()))  # of another curve


@pytest.mark.parametrize("key", ["$(reboot)", PUBLIC_KEY[:-1], PUBLIC_KEY + "A", P384], ids=range(4))
def test_another_kind_of_key_is_named(host: Host, key: str) -> None:
    keyed(host, key)
    ran = host.install()
    assert (ran.returncode, host.served.asked) == (1, [])
    assert f"Upgrade.PublicKey of {host.config}" in ran.stderr
    assert "wanted base64 of an EC public key on the curve P-256" in ran.stderr


def test_a_key_that_the_script_cannot_read_is_not_passed_over(host: Host) -> None:
    """Such as in an object that a later agent writes in another way."""
    host.config.write_text(json.dumps({"Upgrade": {"More": {}, "PublicKey": PUBLIC_KEY}}))
    ran = host.install()
    assert (ran.returncode, host.served.asked) == (1, [])
    assert "cannot be read: it has to be a text, and in an object without others" in ran.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"<html>not found</html>", "no tar.gz"), (tarball("", folder=True)[:-60], "no tar.gz")],
    ids=["page", "cut"],
)
def test_what_is_no_release_is_refused(host: Host, content: bytes, words: str) -> None:
    host.served.files[f"/latest/download/{NAME}"] = content
    ran = host.install()
    assert (ran.returncode, ran.stdout.count("starting")) == (1, 0)
    assert words in ran.stderr
    assert host.left == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"UNBOUNDED_AGENT_CONFIG_FILE": ""}, "UNBOUNDED_AGENT_CONFIG_FILE is not set"),
        ({"UNBOUNDED_AGENT_CONFIG_FILE": "/nonexistent/c"}, "there is no file /nonexistent/c"),
        ({"AGENT_URL": "file:///etc/passwd"}, "begins with http"),
        ({"AGENT_BASE_URL": ""}, "no release of the agent is named: set AGENT_URL, or AGENT_BASE_URL"),
        ({"AGENT_URL": "http://h/a?sig=hush", "AGENT_SHA256": ""}, "http://h/a is plain http: set AGENT_SHA256"),
        ({"AGENT_URL": 'http://h/"\noutput = "/x'}, "white space"),
        ({"UNBOUNDED_INSTALL_DIR": "/proc/none"}, "as root"),
    ],
    ids=["no config", "config missing", "scheme", "no release", "no digest", "two lines", "folder"],
)
def test_invalid_installer_variable_is_reported(host: Host, told: dict[str, str], words: str) -> None:
    ran = host.install(**told)
    assert ran.returncode == 1
    assert words in ran.stderr


def test_a_host_without_what_is_needed_says_so(host: Host) -> None:
    host.only()
    ran = host.install()
    assert ("neither curl nor wget" in ran.stderr, cause_of(ran.stderr)) == (True, "CommandMissing")
    (Path(host.path) / "gzip").unlink()
    ran = host.install()
    assert ("gzip is not installed" in ran.stderr, cause_of(ran.stderr)) == (True, "CommandMissing")
    (Path(host.path) / "gzip").symlink_to("/bin/gzip")
    uname = Path(host.path) / "uname"
    uname.unlink()
    uname.write_text("#!/bin/sh\necho riscv64\n")
    uname.chmod(0o755)
    assert "no agent for the architecture riscv64" in host.install().stderr


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ({"AGENT_DEBUG": "True"}, "--debug start"),
        ({"AGENT_PREFLIGHT": "No"}, "start --ignore-preflight-errors all"),
        ({"AGENT_DEBUG": "0", "AGENT_PREFLIGHT": "1"}, "start"),
    ],
    ids=["debug", "preflight", "neither"],
)
def test_the_agent_is_started_as_one_wants_it(host: Host, told: dict[str, str], arguments: str) -> None:
    host.served.files[f"/latest/download/{NAME}"] = host.release()
    assert host.install(**told).stdout.splitlines()[-1] == f"agent: {arguments}"


def test_the_url_is_in_no_command_line(host: Host) -> None:
    """A user who may run ps would read the credentials."""
    host.served.files["/a.tar.gz"] = host.release()
    host.only()
    real = shutil.which("curl")
    curl = Path(host.path) / "curl"
    curl.write_text(f'#!/bin/sh\necho "$@" >> {host.told}/arguments\nexec {real} "$@"\n')
    curl.chmod(0o755)
    assert host.install(AGENT_URL=f"{host.served.base}/a.tar.gz?sig=hush").returncode == 0
    assert "hush" not in (host.told / "arguments").read_text()


@pytest.mark.parametrize("secret", ["?sig=hush", ""], ids=["query", "without"])
def test_wget_without_url_file_support_gets_no_secret_url(host: Host, secret: str) -> None:
    """As that of busybox."""
    host.served.files["/a.tar.gz"] = host.release()
    host.only()
    wget = Path(host.path) / "wget"
    wget.write_text(
        f'#!/bin/sh\necho "$@" >> {host.told}/arguments\n[ "$1" = --version ] && exit 1\n'
        f'exec {shutil.which("wget")} "$@"\n'
    )
    wget.chmod(0o755)
    ran = host.install(AGENT_URL=f"{host.served.base}/a.tar.gz{secret}")
    assert "hush" not in (host.told / "arguments").read_text() + ran.stdout + ran.stderr
    assert ran.returncode == (1 if secret else 0), ran.stderr
    assert ("install curl" in ran.stderr) == bool(secret)


def test_install_script_waits_for_a_terminated_agent_to_end(host: Host) -> None:
    there = host.told / "there"
    then = f"trap 'sleep 0.3; echo ended; exit 9' TERM; touch {there}; while :; do sleep 0.05; done"
    host.served.files[f"/latest/download/{NAME}"] = host.release(then)
    file = host.folder / "install.sh"
    file.write_text(install_script())
    with subprocess.Popen(
        ["bash", file], env=host.environ(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as ran:
        until(there.exists)
        os.killpg(ran.pid, signal.SIGTERM)
        said, _ = ran.communicate(timeout=60)
    assert (ran.returncode, said.splitlines()[-1]) == (9, "ended")
    assert host.left == []


def test_what_one_that_was_killed_left_goes_with_the_next(host: Host) -> None:
    host.served.files[f"/latest/download/{NAME}"] = host.release()
    left, used = host.place / "install.4194399.abc", host.place / f"install.{os.getpid()}.abc"
    left.mkdir(parents=True)
    used.mkdir()
    assert host.install().returncode == 0
    assert host.left == [used.name]


def until(true: Any, *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# Its signature


def rooted(script: str, host: Host) -> str:
    """For a folder instead of /var/lib/unbounded."""
    return script.replace("/var/lib/unbounded", str(host.place))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="root")
def test_the_standalone_script_needs_nothing_else_and_leaves_no_token(host: Host) -> None:
    host.served.files["/ab"] = host.release("exit 5")
    origin = AgentOrigin(url=f"{host.served.base}/ab?x='$(id)", sha256=host.digest)
    script = standalone_script(HostSetup(CONFIG, origin))
    ran = host.install(rooted(script, host))
    assert ran.returncode == 5, ran.stderr
    assert json.loads((host.told / "config").read_text()) == json.loads(config_text(CONFIG))
    assert host.served.asked == [("/ab?x='$(id)", "")]
    assert host.left == []
    assert TOKEN not in ran.stdout + ran.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="root")
def test_the_standalone_script_refuses_who_is_not_root(host: Host) -> None:
    file = host.folder / "script"
    file.write_text(standalone_script(HostSetup(CONFIG, AgentOrigin())))
    file.chmod(0o644)
    with file.open() as script:
        ran = subprocess.run(
            ["bash"],
            stdin=script,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=65534,
            env={"PATH": PATH},
        )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "run this as root" in ran.stderr


def test_permissions_of_what_is_staged_let_programs_run(host: Host) -> None:
    """Only the owner can write to the folder, and its content may be run."""
    then = f'stat -c %a "$0" "$(dirname "$0")" > {host.told}/modes'
    host.served.files[f"/latest/download/{NAME}"] = host.release(then)
    assert host.install().returncode == 0
    assert all(not int(mode, 8) & (stat.S_IWGRP | stat.S_IWOTH) for mode in (host.told / "modes").read_text().split())
