"""Settings against unattended upgrades that restart services which the node needs (hosts with apt)."""

from __future__ import annotations

from typing import Final

from unbounded.agent.ports import OnProgress
from unbounded.agent.steps.files import OwnFile
from unbounded.agent.steps.step import ReversibleStep, StepHost

NAME: Final = "upgrade drop-ins"
HELD: Final = ("systemd", "systemd-container", "systemd-sysv", "libsystemd0", "libcap2", "libcap2-bin", "libpam-cap")
APT: Final = OwnFile(
    "apt-file",
    "/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd",
    b"// Written by unbounded-agent: an upgrade of these restarts the machine that the node runs in.\n"
    b"Unattended-Upgrade::Package-Blacklist {\n"
    + "".join(f'    "^{name.replace("+", "[+]")}$";\n' for name in HELD).encode()
    + b"};\n",
)
NEEDRESTART: Final = OwnFile(
    "needrestart-file",
    "/etc/needrestart/conf.d/99-unbounded.conf",
    b"# Written by unbounded-agent: list what wants a restart, restart nothing.\n$nrconf{restart} = 'l';\n",
)
FILES: Final = (APT, NEEDRESTART)


async def _present(host: StepHost) -> bool:
    return not host.has("apt-get") or all(file.is_present(host.layout) for file in FILES)


async def _add(host: StepHost, _tell: OnProgress) -> None:
    for file in FILES:
        file.put(host.layout)


async def _remove(host: StepHost) -> None:
    for file in FILES:
        file.revert(host.layout)


DROP_INS: Final = ReversibleStep(NAME, _present, _add, _remove)
