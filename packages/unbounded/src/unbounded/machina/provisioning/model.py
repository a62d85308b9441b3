"""Types of a run of the install script on a host, for the rest of machina."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Rejected
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import Shell

ANOTHER_MACHINE: Final = 65  # status of a reset that changed nothing, as the host is another Machine


@dataclass(frozen=True)
class Install:
    """Upload of a run.

    Args:
        uid: the Machine's durable UID; names the folder on the host.
        attempt: names the run in the folder.
        config: the agent's JSON.
        script: bash.
        environment: AGENT_VERSION, AGENT_BASE_URL, AGENT_URL, AGENT_DEBUG, AGENT_PREFLIGHT.
        hidden: secrets to redact from all output, besides text that looks like a secret.
    """

    uid: str
    attempt: str
    config: SecretStr
    script: str
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[SecretStr, ...] = ()


@dataclass(frozen=True)
class NoRun:
    """The host has no run of this Machine, neither a running nor an ended one."""


@dataclass(frozen=True)
class RunInProgress:
    attempt: str
    seconds: int
    progress: str = ""


@dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Args:
        status: of the script.
        tail: end of the script's output, at most 16 KiB, redacted.
    """

    attempt: str
    status: int
    tail: str = ""


@dataclass(frozen=True)
class Interrupted:
    """A run that stopped without a result: the host was rebooted, or the process was killed."""

    attempt: str
    why: str


ObservedRun = NoRun | RunInProgress | Finished | Interrupted


class HostRefuses(Rejected):
    """The host cannot run the script: sudo requires a password, no bash, full disk, unsupported CPU.

    Args:
        reason: of the condition Provisioning.
    """

    def __init__(self, message: str, reason: ConditionReason = ConditionReason.FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class Installer(Protocol):
    """Runs of the script. Each is a process of its own on the host that outlives the connection."""

    async def observe(self, shell: Shell, uid: str) -> ObservedRun:
        """Observe the run on the host."""
        ...

    async def begin(self, shell: Shell, install: Install) -> ObservedRun:
        """Upload and start a run in one session. If a run is in progress, start nothing and return that run.

        Raises:
            HostRefuses, SshTransient, SshUncertain
        """
        ...

    async def follow(self, shell: Shell, install: Install, report: Callable[[str], None]) -> ObservedRun:
        """Wait until the current run has ended, this one or an earlier one, and report each line of progress.

        Raises:
            SshUncertain: the connection broke; the run continues on the host.
        """
        ...

    async def clear(self, shell: Shell, uid: str) -> None:
        """Remove config, script and log, also after a failure. The result of the run stays until the next run."""
        ...

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, report: Callable[[str], None]
    ) -> Finished:
        """Remove the agent and the node from the host: `unbounded-agent reset`, else all files and units that we know
        of.

        A host that is another Machine than the named one stays unchanged, and the status is ANOTHER_MACHINE.
        """
        ...
