"""Programs that a node needs on its host, from the host's own packages: only missing ones, without recommended
packages.

Packages stay after a reset, as other software may need them by then; the reset lists them. On hosts with apt, settings
keep unattended upgrades from restarting services that the node needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.agent.interfaces import OnProgress
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import OriginalState, OwnFile
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.logs import Log

log = Log("agent")

NAME: Final = "packages"
INSTALL_S: Final = 1200.0
UPDATE_S: Final = 300.0
QUERY_S: Final = 60.0
_INTERRUPTED: Final = "dpkg was interrupted"


@dataclass(frozen=True)
class PackageManager:
    """Package manager of one kind of host.

    Args:
        update: empty where installing includes it.
        packages: the package of each program.
        names: prints the installed packages, one in a line.
    """

    program: str
    update: tuple[str, ...]
    install: tuple[str, ...]
    names: tuple[str, ...]
    packages: Mapping[str, str]


_APT: Final = ("-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20")
_RPM_NAMES: Final = ("rpm", "-qa", "--queryformat", "%{NAME}\\n")
_RPM_PACKAGES: Final = {
    "machinectl": "systemd-container",
    "nft": "nftables",
    "ip": "iproute",
    "debootstrap": "debootstrap",
}
MANAGERS: Final = (
    PackageManager(
        "apt-get",
        ("apt-get", *_APT, "update"),
        ("apt-get", *_APT, "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", "install"),
        ("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Package}\\n"),
        _RPM_PACKAGES | {"ip": "iproute2"},
    ),
    PackageManager("tdnf", (), ("tdnf", "-y", "install"), _RPM_NAMES, _RPM_PACKAGES),
    PackageManager("dnf", (), ("dnf", "-y", "--setopt=install_weak_deps=False", "install"), _RPM_NAMES, _RPM_PACKAGES),
)
PROGRAMS: Final = ("machinectl", "nft", "ip")
QUIET: Final = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l", "APT_LISTCHANGES_FRONTEND": "none"}


class FoundPackages(msgspec.Struct, frozen=True):
    """Names of the installed packages."""

    names: tuple[str, ...]


BEFORE: Final = OriginalState("packages", FoundPackages)
INSTALLED: Final = OriginalState("packages-installed", FoundPackages)  # packages that the agent has installed


def missing(host: StepHost) -> tuple[str, ...]:
    """Return the required programs that are not installed."""
    desired = (*PROGRAMS, *(("debootstrap",) if host.debootstrap else ()))
    return tuple(program for program in desired if not host.has(program))


def manager_of(host: StepHost) -> PackageManager:
    """Return the package manager of a host.

    Raises:
        Rejected: the host has no supported one.
    """
    for manager in MANAGERS:
        if host.has(manager.program):
            return manager
    known = ", ".join(manager.program for manager in MANAGERS)
    raise Rejected(f"install {', '.join(missing(host))} by hand: this host has none of {known}")


def installed_by_us(paths: HostPaths) -> tuple[str, ...]:
    """Return the packages that the agent's installations added, for the report of a reset."""
    found = INSTALLED.read(paths)
    return found.names if found else ()


async def _present(host: StepHost) -> bool:
    unfinished = BEFORE.read(host.paths) is not None and INSTALLED.read(host.paths) is None
    return not missing(host) and not unfinished


async def _add(host: StepHost, report: OnProgress) -> None:
    manager = manager_of(host)
    before = BEFORE.record(host.paths, FoundPackages(await _names(host, manager)))
    if programs := missing(host):
        packages = tuple(manager.packages[program] for program in programs)
        report(f"installing {', '.join(packages)}")
        await _install(host, manager, packages)
    if still := missing(host):
        raise Rejected(f"the packages are installed, but {', '.join(still)} is missing")
    came = sorted(set(await _names(host, manager)) - set(before.names))
    log.info("packages installed", packages=came)
    INSTALLED.replace(host.paths, FoundPackages(tuple(came)))


async def _install(host: StepHost, manager: PackageManager, packages: tuple[str, ...]) -> None:
    """Install packages; an error of the lists' update is reported only where the installation fails."""
    update = await _updated(host, manager)
    try:
        await host.commands.run(*manager.install, *packages, timeout_s=INSTALL_S, env=QUIET)
    except Transient as error:
        if _INTERRUPTED in str(error):
            await host.commands.run("dpkg", "--configure", "-a", timeout_s=INSTALL_S, env=QUIET)
            await host.commands.run(*manager.install, *packages, timeout_s=INSTALL_S, env=QUIET)
            return
        why = f"{update}; {error}" if update else str(error)
        raise Transient(
            f"{', '.join(packages)} could not be installed from this host's package sources: {why}"
        ) from error


async def _updated(host: StepHost, manager: PackageManager) -> str:
    """Update the lists; return an error's message, as the present lists may suffice."""
    if not manager.update:
        return ""
    try:
        await host.commands.run(*manager.update, timeout_s=UPDATE_S, env=QUIET)
    except Transient as error:
        log.warning("cannot update package lists", error=error)
        return str(error)
    return ""


async def _names(host: StepHost, manager: PackageManager) -> tuple[str, ...]:
    output = (await host.commands.run(*manager.names, timeout_s=QUERY_S)).stdout.split("\n")
    if manager.program != "apt-get":
        return tuple(sorted({line for line in output if line}))
    return tuple(sorted({line[3:].strip() for line in output if line.startswith("ii")}))


async def _remove(host: StepHost) -> None:
    BEFORE.forget(host.paths)
    INSTALLED.forget(host.paths)


PACKAGES: Final = ReversibleStep(NAME, _present, _add, _remove, after=("upgrade drop-ins",))

DROP_INS_NAME: Final = "upgrade drop-ins"
HELD_PACKAGES: Final = (
    *("systemd", "systemd-container", "systemd-sysv", "libsystemd0"),
    *("libcap2", "libcap2-bin", "libpam-cap"),
)
APT: Final = OwnFile(
    "apt-file",
    "/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd",
    b"// Written by unbounded-agent: an upgrade of these restarts the machine that the node runs in.\n"
    b"Unattended-Upgrade::Package-Blacklist {\n"
    + "".join(f'    "^{name.replace("+", "[+]")}$";\n' for name in HELD_PACKAGES).encode()
    + b"};\n",
)
NEEDRESTART: Final = OwnFile(
    "needrestart-file",
    "/etc/needrestart/conf.d/99-unbounded.conf",
    b"# Written by unbounded-agent: list what wants a restart, restart nothing.\n$nrconf{restart} = 'l';\n",
)
DROP_IN_FILES: Final = (APT, NEEDRESTART)


async def _drop_ins_present(host: StepHost) -> bool:
    return not host.has("apt-get") or all(file.is_present(host.paths) for file in DROP_IN_FILES)


async def _add_drop_ins(host: StepHost, _report: OnProgress) -> None:
    for file in DROP_IN_FILES:
        file.put(host.paths)


async def _remove_drop_ins(host: StepHost) -> None:
    for file in DROP_IN_FILES:
        file.revert(host.paths)


DROP_INS: Final = ReversibleStep(DROP_INS_NAME, _drop_ins_present, _add_drop_ins, _remove_drop_ins)
