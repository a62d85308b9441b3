"""Real OpenSSH servers on loopback addresses, each a host of its own as to processes, mounts and accounts.

Each has an own init, so that the host can go down at once with all of its processes. It has another boot id after each
start, and own accounts `root` and `ubuntu`, whose `sudo` is a script of the test. On the host its folder is /srv.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.support.ports import free_port

TOOLS: Final = Path(sys.prefix) / "tools" / "bin"
PORT: Final = 22
USER: Final = "ubuntu"
USER_ID: Final = 1000
SUDO_MODES: Final = ("allows", "wants a password", "forbids the environment")
_LISTENERS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"  # a state there
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_START_S: Final = 60.0
_INIT: Final = 'mkdir -p /run/sshd; {mounts}; "$0" -f "$1" -E "$2"; while :; do sleep 1000 & wait $!; done'
_SUDO: Final = """#!/bin/sh
# sudo -n [-E] [--] COMMAND...
mode=$(cat /srv/sudo-mode)
while :; do
  case $1 in
    -E | --preserve-env*)
      if [ "$mode" = "forbids the environment" ]; then
        echo "sudo: sorry, you are not allowed to preserve the environment" >&2
        exit 1
      fi
      shift ;;
    --) shift; break ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ "$mode" != "wants a password" ] || { echo "sudo: a password is required" >&2; exit 1; }
exec /srv/bin/root-shell -p -c 'exec setpriv --reuid 0 --regid 0 --clear-groups "$@"' sudo "$@"
"""


def missing() -> str | None:
    """Return what tests with these servers lack here; None when they can run."""
    if os.geteuid() != 0:
        return "root"
    if sshd_program() is None:
        return "sshd, which scripts/ssh-tools gets"
    if is_taken("".join(table.read_text() for table in _LISTENERS if table.exists())):
        return f"port {PORT} of 127.0.0.0/8, which a server of this machine has on all addresses"
    return next((name for name in ("ssh", "ssh-keygen", "unshare", "nsenter") if shutil.which(name) is None), None)


def is_taken(listeners: str) -> bool:
    """Return whether the kernel's tables have a listener on our port on all addresses, so that none is left for us."""
    rows = (line.split() for line in listeners.splitlines())
    sockets = {row[1] for row in rows if len(row) > 3 and row[3] == _LISTENS}
    return any(f"{address}:{PORT:04X}" in sockets for address in ("0" * 8, "0" * 32))


def sshd_program() -> str | None:
    """The server; it wants to be called by its whole path."""
    places = os.pathsep.join((os.environ.get("PATH", ""), str(TOOLS), "/usr/sbin"))
    return shutil.which("sshd", path=places)


@dataclass
class Server:
    """Args:
    mounts: shell commands that mount something before the server starts, in a namespace of its own.
    """

    folder: Path
    name: str
    address: str
    port: int
    options: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    _init: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _said: int = field(default=0, repr=False)  # in the log, before the server was started last

    @property
    def at(self) -> str:
        """As `ssh.host` wants it; the port is left out where it is the usual one."""
        if self.port == PORT:
            return self.address
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def host_key(self) -> str:
        """As `ssh.hostKeys` wants it."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen prints it."""
        return fingerprint_of(self.folder / "host_key.pub")

    @property
    def log(self) -> str:
        """Return the server's log, at level VERBOSE."""
        place = self.folder / "log"
        return place.read_text(errors="replace") if place.exists() else ""

    @property
    def home(self) -> Path:
        """Of root; ubuntu's is `ubuntu` beside it."""
        return self.folder / "root"

    @property
    def install(self) -> Path:
        """Return UNBOUNDED_INSTALL_DIR of every session, as a path outside."""
        return self.folder / "install"

    def sudo(self, mode: str) -> None:
        """From now on sudo does this, of SUDO_MODES."""
        assert mode in SUDO_MODES
        (self.folder / "sudo-mode").write_text(mode)

    def rekey(self, kind: str = "ed25519") -> None:
        """Another host key. It counts from the next start."""
        for part in ("host_key", "host_key.pub"):
            (self.folder / part).unlink(missing_ok=True)
        keygen(self.folder / "host_key", kind)

    def write(self) -> None:
        """Everything that the server reads."""
        self.folder.mkdir(mode=0o755)
        homes = ((self.folder / "root", 0), (self.folder / USER, USER_ID))
        for home, owner in homes:
            home.mkdir()
            os.chown(home, owner, owner)
        tools = self.folder / "bin"
        tools.mkdir()
        root_shell = tools / "root-shell"
        shutil.copy("/bin/bash", root_shell)
        root_shell.chmod(0o4755)
        sudo = tools / "sudo"
        sudo.write_text(_SUDO)
        sudo.chmod(0o755)
        self.sudo("allows")
        self.rekey()
        accounts = ["root:x:0:0:root:/srv/root:/bin/bash", f"{USER}:x:{USER_ID}:{USER_ID}::/srv/{USER}:/bin/bash"]
        known = Path("/etc/passwd").read_text().splitlines()
        taken = {"root", USER, "sshd"}
        accounts += [line for line in known if line.partition(":")[0] not in taken]
        (self.folder / "passwd").write_text("\n".join([*accounts, "sshd:x:74:65534::/run/sshd:/usr/sbin/nologin", ""]))
        path = "/srv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        lines = (
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.folder}/host_key",
            f"PidFile {self.folder}/pid",
            "AuthorizedKeysFile /media/authorized_keys",
            "TrustedUserCAKeys /media/authority.pub",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 1000:30:2000",
            "MaxSessions 1000",
            "LogLevel VERBOSE",
            "UseDNS no",
            # bash reads no ~/.bashrc then
            f"SetEnv SHLVL=5 PATH={path} UNBOUNDED_INSTALL_DIR=/srv/install",
        )
        # The first value of an option counts.
        (self.folder / "sshd_config").write_text("\n".join((*self.options, *lines, "")))

    def start(self, *, wait: bool = True) -> None:
        """Start the host, or after `close` its server alone."""
        program = sshd_program()
        assert program
        config, log = str(self.folder / "sshd_config"), str(self.folder / "log")
        self._said = len(self.log)
        if self._init is not None and self._init.poll() is None:
            subprocess.run([*self._inside(), program, "-f", config, "-E", log], check=True, timeout=_START_S)
        else:
            (self.folder / "boot_id").write_text(f"{uuid4()}\n")
            binds = {".": "/srv", "passwd": "/etc/passwd", "..": "/media", "boot_id": _BOOT_ID}
            ours = (f"mount --bind '{self.folder / inner}' {place}" for inner, place in binds.items())
            mounts = "; ".join((*ours, *self.mounts))
            apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            command = [*apart, "sh", "-ec", _INIT.format(mounts=mounts), program, config, log]
            with (self.folder / "init.log").open("ab") as said:
                self._init = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server reports that it listens: another process may listen on the same port."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            assert self._init is not None
            assert self._init.poll() is None, (self.folder / "init.log").read_text() + self.log
            said = self.log[self._said :]
            if f"Server listening on {self.address} port {self.port}." in said:
                return
            assert "Cannot bind any address" not in said, said
            time.sleep(0.02)
        raise AssertionError(f"{self.name} does not listen: {self.log}")

    def close(self) -> None:
        """Close the listener alone; sessions and processes on the host continue."""
        subprocess.run([*self._inside(), "sh", "-c", f"kill $(cat '{self.folder}/pid')"], check=True, timeout=_START_S)

    def close_sessions(self) -> None:
        """Break all connections; processes in sessions of their own continue, and the server, too."""
        script = f"for p in $(pgrep -x sshd); do [ $p = $(cat '{self.folder}/pid') ] || kill -9 $p; done"
        subprocess.run([*self._inside(), "sh", "-c", script], check=False, timeout=_START_S)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell on the host, beside SSH."""
        return subprocess.run(
            [*self._inside(), "sh", "-c", command], capture_output=True, text=True, timeout=_START_S, check=False
        )

    def down(self) -> None:
        """The host goes down at once, with everything on it."""
        if self._init is None:
            return
        with suppress(ProcessLookupError):
            self._init.send_signal(signal.SIGKILL)  # of unshare, which takes init and so the rest with it
        self._init.wait()
        self._init = None
        (self.folder / "pid").unlink(missing_ok=True)

    def _inside(self) -> list[str]:
        assert self._init is not None
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        return ["nsenter", "--target", children[0], "--mount", "--pid"]


@dataclass(frozen=True)
class Fleet:
    """Args:
    key: of a user who may log in everywhere; `key.pub`, and `key-cert.pub` of the authority, beside it.
    """

    folder: Path
    servers: tuple[Server, ...]
    bastion: Server | None
    key: Path
    authority: Path

    def authorize(self, public: Path) -> None:
        """A further key that may log in everywhere."""
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(public.read_text())


@contextmanager
def sshd_fleet(
    folder: Path,
    count: int,
    *,
    bastion: bool = False,
    options: Sequence[str] = (),
    mounts: Sequence[str] = (),
    address: str | None = None,
) -> Iterator[Fleet]:
    """Servers that listen, until the end of the block.

    Args:
        folder: empty or missing.
        options: lines of sshd_config that count before ours.
        mounts: shell commands in each host's own mount namespace, such as a file system that is small.
        address: of all of them, such as ::1, on free ports; otherwise each has an address of its own and port 22.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    keygen(folder / "key", "ed25519")
    keygen(folder / "authority", "ed25519")
    sign(folder / "authority", folder / "key.pub")
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    block = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"

    def server(name: str, number: int) -> Server:
        where, port = (address, free_port(address)) if address else (f"{block}.{number}", PORT)
        made = Server(folder / name, name, where, port, tuple(options), tuple(mounts))
        made.write()
        return made

    servers = tuple(server(f"host{number}", number) for number in range(1, count + 1))
    jump = server("bastion", 254) if bastion else None
    with ExitStack() as stack:
        everyone = (*servers, *((jump,) if jump else ()))
        for one in everyone:
            stack.callback(one.down)
            one.start(wait=False)
        for one in everyone:
            one.wait()
        yield Fleet(folder, servers, jump, folder / "key", folder / "authority")


def keygen(place: Path, kind: str, *, passphrase: str = "", options: Sequence[str] = ()) -> Path:
    """A new key pair at `place` and `place`.pub."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", place.name, "-f", str(place), *options]
    subprocess.run(command, check=True, timeout=60)
    return place


def sign(authority: Path, public: Path, *, users: str = f"root,{USER}", valid: str = "+1d") -> Path:
    """Return the certificate of a public key, which is stored next to it."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", users, "-V", valid, str(public)]
    subprocess.run(command, check=True, timeout=60)
    return public.with_name(f"{public.stem}-cert.pub")


def fingerprint_of(public: Path) -> str:
    """`SHA256:…` as OpenSSH prints it."""
    done = subprocess.run(["ssh-keygen", "-lf", str(public)], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()[1]
