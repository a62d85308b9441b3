"""A host made up in a folder: its files are real, its programs and its systemd are simulated and remember."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from unbounded.agent.interfaces import HostCommandResult, UnitFacts
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps import packages
from unbounded.agent.steps.step import StepHost
from unbounded.api.failures import Transient

Answer = Callable[[tuple[str, ...]], tuple[int, str]]  # status, and what is printed


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory: what is tried many times syncs much, which a busy disk takes its time for."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="made-up-hosts-", dir=place) as folder:
        yield Path(folder)


@dataclass
class MadeUpCommands:
    """Answers by the first words of a command; a command without an answer succeeds and prints nothing."""

    answers: dict[str, Answer] = field(default_factory=dict)
    ran: list[tuple[str, ...]] = field(default_factory=list)
    inputs: list[bytes] = field(default_factory=list)

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        self.ran.append(argv)
        if stdin is not None:
            self.inputs.append(stdin)
        line = " ".join(argv)
        answer = next((one for words, one in self.answers.items() if line.startswith(words)), None)
        status, said = answer(argv) if answer else (0, "")
        if status and check:
            raise Transient(f"{argv[0]}: status {status}: {said}")
        return HostCommandResult(argv, status, "" if status else said, said if status else "")

    def lines(self, program: str) -> list[str]:
        """The commands of one program that ran."""
        return [" ".join(argv) for argv in self.ran if argv[0] == program]


@dataclass
class MadeUpUnits:
    """systemd as far as states go. Unit files are real ones below its root; masks are links to /dev/null there."""

    paths: HostPaths
    units: dict[str, UnitFacts] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)

    async def observe(self, unit: str) -> UnitFacts:
        facts = self.units.get(unit, UnitFacts(unit))
        path = self.paths.units / unit
        if path.is_symlink():
            return replace(facts, load="masked", enabled="masked")
        return replace(facts, load="loaded") if path.exists() else facts

    def _set(self, unit: str, did: str, **facts: str) -> None:
        self.did.append(f"{did} {unit}")
        self.units[unit] = replace(self.units.get(unit, UnitFacts(unit)), **facts)  # type: ignore[arg-type]

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        if (await self.observe(unit)).load in ("masked", "not-found"):
            raise Transient(f"systemctl start {unit}: Unit {unit} is masked or not found")
        self._set(unit, "start", active="active")

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        self._set(unit, "stop", active="inactive")

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        self._set(unit, "restart", active="active")

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        self._set(unit, "kill", active="failed")

    async def enable(self, *units: str) -> None:
        for unit in units:
            self._set(unit, "enable", enabled="enabled")

    async def disable(self, *units: str) -> None:
        for unit in units:
            self._set(unit, "disable", enabled="disabled")

    async def mask(self, *units: str) -> None:
        for unit in units:
            path = self.paths.units / unit
            if path.exists() and not path.is_symlink():
                raise Transient(f"systemctl mask {unit}: File {path} already exists.")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_symlink():
                path.symlink_to("/dev/null")
            self.did.append(f"mask {unit}")

    async def unmask(self, *units: str) -> None:
        for unit in units:
            path = self.paths.units / unit
            if path.is_symlink():
                path.unlink()
            self.did.append(f"unmask {unit}")

    async def reset_failed(self, unit: str) -> None:
        self.did.append(f"reset-failed {unit}")

    async def reload(self) -> None:
        self.did.append("daemon-reload")


@dataclass
class MadeUpHost:
    host: StepHost
    commands: MadeUpCommands
    units: MadeUpUnits

    @property
    def paths(self) -> HostPaths:
        return self.host.paths

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> Path:
        file = self.paths.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(mode)
        return file

    def program(self, *names: str) -> None:
        for name in names:
            self.write(f"/usr/bin/{name}", "", 0o755)

    def remove_program(self, name: str) -> None:
        self.paths.at(f"/usr/bin/{name}").unlink()

    def tree(self) -> dict[str, tuple[int, bytes | str]]:
        """All that is there: by path, the mode, and the content or where a link leads; folders end with a slash."""
        found: dict[str, tuple[int, bytes | str]] = {}
        for path in sorted(self.paths.root.rglob("*")):
            name = str(path.relative_to(self.paths.root))
            if path.is_symlink():
                found[name] = (0, str(path.readlink()))
            elif path.is_dir():
                found[name + "/"] = (path.stat().st_mode, "")
            else:
                found[name] = (path.stat().st_mode, path.read_bytes())
        return found


SYSCTLS = {
    "vm/overcommit_memory": "0",
    "vm/panic_on_oom": "0",
    "kernel/panic": "0",
    "kernel/panic_on_oops": "0",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "net/ipv4/ip_forward": "0",
    "net/ipv4/conf/all/src_valid_mark": "0",
    "net/ipv4/conf/default/src_valid_mark": "0",
    "net/ipv4/conf/all/rp_filter": "2",
    "net/ipv4/conf/default/rp_filter": "2",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv4/conf/eth0/forwarding": "0",
}


def made_up_host(root: Path) -> MadeUpHost:
    """A Debian host with all programs, and kernel parameters as a distribution has them; no br_netfilter."""
    paths = HostPaths(root)
    commands, units = MadeUpCommands(), MadeUpUnits(paths)
    made = MadeUpHost(StepHost(paths, commands, units), commands, units)
    made.program("apt-get", "machinectl", "nft", "ip")
    for name, value in SYSCTLS.items():
        made.write(f"/proc/sys/{name}", f"{value}\n")
    made.write("/proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    made.write("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n")
    for folder in ("/sys/class/net/eth0", "/etc/systemd/system", "/usr/local/bin", "/run", "/etc/sysctl.d"):
        paths.at(folder).mkdir(parents=True)
    return made


SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
FSTAB = (
    "UUID=1 / ext4 defaults 0 1\n"
    "/dev/sda2 none swap sw 0 0\n"
    "  UUID=2\tnone\tswap\tsw,pri=5 0 0\n"
    "/dev/sdb1 /srv/swap ext4 defaults 0 2\n"
    "# /dev/old none swap sw 0 0\n"
    "LABEL=swap /mnt/swap xfs noatime 0 2"
)


def with_swap(made: MadeUpHost) -> None:
    """Swap on a partition and in a file with a blank in its name, in a systemd that obeys swapoff and swapon."""
    lines = ["/dev/sda2 partition 1024 0 -2\n", "/swap\\040file file 1024 0 5\n"]
    made.write("/etc/fstab", FSTAB)
    made.write("/dev/sda2", "")
    made.write("/swap file", "")
    made.write("/proc/swaps", SWAPS + "".join(lines))

    def off(argv: tuple[str, ...]) -> tuple[int, str]:
        lines[:] = [line for line in lines if line.split()[0].replace("\\040", " ") != argv[-1]]
        made.write("/proc/swaps", SWAPS + "".join(lines))
        return 0, ""

    def on(argv: tuple[str, ...]) -> tuple[int, str]:
        lines.append(f"{argv[-1].replace(' ', chr(92) + '040')} file 1024 0 {argv[2] if len(argv) > 3 else -2}\n")
        made.write("/proc/swaps", SWAPS + "".join(lines))
        return 0, ""

    made.commands.answers |= {"swapoff": off, "swapon": on}


def with_apt(made: MadeUpHost, *, broken: str = "") -> None:
    """Add an apt that installs the requested packages, and libraries in addition, unless its mirror is dead."""
    installed = ["ii bash", "rc gone"]

    def install(argv: tuple[str, ...]) -> tuple[int, str]:
        if broken:
            return 100, broken
        programs = {"systemd-container": "machinectl", "nftables": "nft", "debootstrap": "debootstrap"}
        for package in (one for one in argv if one in programs):
            installed.extend([f"ii {package}", f"ii lib{package}"])
            made.program(programs[package])
        return 0, ""

    update = " ".join(packages.MANAGERS[0].update)
    made.commands.answers |= {
        update: lambda _argv: (100 if broken else 0, broken),
        "apt-get": install,
        "dpkg-query": lambda _argv: (0, "\n".join(installed)),
    }
