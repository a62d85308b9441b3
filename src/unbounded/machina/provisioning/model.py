"""What the rest of machina knows of a run of the install script on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Rejected
from unbounded.kube.logs import Secret
from unbounded.machina.ssh.model import Shell

ANOTHER_MACHINE: Final = 65  # the status of a reset that has left the host alone, as it is another Machine


@dataclass(frozen=True)
class Install:
    """What is uploaded.

    Args:
        uid: the Machine's lasting one; names the folder on the host.
        attempt: names the run in it.
        config: the agent's JSON.
        script: bash.
        environment: AGENT_VERSION, AGENT_BASE_URL, AGENT_URL, AGENT_DEBUG, AGENT_PREFLIGHT.
        hidden: what is taken out of everything that is shown, beside what looks like a secret.
    """

    uid: str
    attempt: str
    config: Secret
    script: str
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[Secret, ...] = ()


@dataclass(frozen=True)
class NoRun:
    """Nothing of this Machine runs on the host, or has ended there."""


@dataclass(frozen=True)
class Running:
    attempt: str
    seconds: int
    progress: str = ""


@dataclass(frozen=True)
class Finished:
    """
    Args:
        status: of the script.
        tail: the end of what it said, at most 16 KiB, without secrets.
    """

    attempt: str
    status: int
    tail: str = ""


@dataclass(frozen=True)
class Interrupted:
    """It neither runs nor has said how it ended: the host was rebooted, or its process was killed."""

    attempt: str
    why: str


Remote = NoRun | Running | Finished | Interrupted


class HostRefuses(Rejected):
    """The host cannot carry it out: sudo wants a password, no bash, full disk, unsupported CPU. In words.

    Args:
        reason: as condition Provisioning has it.
    """

    def __init__(self, message: str, reason: ConditionReason = ConditionReason.FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class Installer(Protocol):
    """Runs of the script, each in a process of its own on the host that outlives the connection."""

    async def look(self, shell: Shell, uid: str) -> Remote:
        """What is on the host now."""
        ...

    async def begin(self, shell: Shell, install: Install) -> Remote:
        """Upload and start, in one session. Where a run is at work nothing is started, and that one is answered.

        Raises:
            HostRefuses, SshTransient, SshUncertain
        """
        ...

    async def follow(self, shell: Shell, install: Install, tell: Callable[[str], None]) -> Remote:
        """Wait until the run that is at work, this one or an earlier, has ended; each line of its progress is told.
        SshUncertain when the line breaks: it goes on."""
        ...

    async def clear(self, shell: Shell, uid: str) -> None:
        """Remove config, script and log, also after a failure. How the run ended stays until the next begins."""
        ...

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, tell: Callable[[str], None]
    ) -> Finished:
        """Take the agent and the node off the host: `unbounded-agent reset`, else what we know it is made of. A host
        that is another Machine than the one of this name stays as it is, and the status is ANOTHER_MACHINE."""
        ...
