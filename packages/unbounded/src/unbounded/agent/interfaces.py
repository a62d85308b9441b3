"""Interfaces that the agent needs from outside itself. host/ and node/ implement them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.api.configuration import NodeSettings
from unbounded.api.operation import MachineOperation
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import Observation, Procedure

OnProgress = Callable[[str], None]  # progress message for a user: "containerd 2.1.8: 42 %"


@dataclass(frozen=True)
class HostCommandResult:
    """A command that has ended.

    Args:
        stdout, stderr: their last MiB.
    """

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.status == 0


class Commands(Protocol):
    """Programs of the host. They get argument lists only, never an assembled shell line."""

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        """Run a program until it exits.

        Args:
            env: in addition to the agent's environment.
            check: raise when the status is not 0.
        Raises:
            Rejected: there is no such program.
            Transient: it failed (the message ends with the last lines of stderr), or exceeded the timeout and was
                killed.
        """
        ...


@dataclass(frozen=True)
class UnitFacts:
    """State of a unit in systemd.

    Args:
        load: loaded, not-found, masked, …; active: active, inactive, failed, activating, …; enabled: as UnitFileState.
        main_pid: 0 where nothing runs.
        restarts: NRestarts.
    """

    name: str
    load: str = "not-found"
    active: str = "inactive"
    sub: str = "dead"
    enabled: str = ""
    main_pid: int = 0
    restarts: int = 0
    result: str = ""


class Units(Protocol):
    """The service manager of the host, or (`inside`) that of a running nspawn machine."""

    async def observe(self, unit: str) -> UnitFacts: ...
    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None: ...
    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None: ...
    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None: ...
    async def kill(self, unit: str, signal: str = "SIGKILL") -> None: ...
    async def enable(self, *units: str) -> None: ...
    async def disable(self, *units: str) -> None: ...
    async def mask(self, *units: str) -> None: ...
    async def unmask(self, *units: str) -> None: ...
    async def reset_failed(self, unit: str) -> None:
        """Clear failures and start limits; a unit without any stays unchanged."""
        ...

    async def reload(self) -> None:
        """Reload unit files (daemon-reload)."""
        ...


class Nodes(Protocol):
    """The slots. Every call can be interrupted anywhere and repeated; every wait has a limit."""

    async def observe(self, slot: Slot) -> SlotFacts: ...

    async def build(self, slot: Slot, spec: NodeGoal, access: KubeletAccess, report: OnProgress) -> None:
        """Build the slot from scratch: root file system, binaries, configuration and nspawn files. The record of
        the build is written last. A half-built slot is removed first. The slot is not started.

        Raises:
            Transient, Rejected: a download or a step failed; the slot is incomplete.
        """
        ...

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        """Download what `build` needs for this goal, so that it needs no download later. No slot changes.

        Raises:
            Transient, Rejected: a download failed.
        """
        ...

    async def start(self, slot: Slot) -> None:
        """Start the machine, containerd and kubelet; return when the machine answers and kubelet is active.

        Raises:
            Transient: not within the limits.
        """
        ...

    async def stop_services(self, slot: Slot) -> None:
        """Stop kubelet, then containerd; kill one that hangs past its limit. Without running services, do nothing."""
        ...

    async def stop(self, slot: Slot) -> None:
        """Stop the machine, first gently, then by force, and disable its start at boot."""
        ...

    async def remove(self, slot: Slot) -> None:
        """Remove all files of a stopped slot: the record of its build first, then the others."""
        ...

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        """Return kubelet's client certificate in the slot, with its key; None when there is none yet."""
        ...

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        """Give kubelet in a complete slot this certificate; its services are stopped for this and stay stopped."""
        ...

    async def kubelet_problem(self, slot: Slot) -> str:
        """Return why kubelet in the running slot is not healthy, and how it exited last; empty when it is healthy."""
        ...

    async def sandbox_problem(self, slot: Slot) -> str:
        """Run a Pod sandbox in the running slot and remove it; return why it failed, empty when it ran."""
        ...

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        """Set labels and taints of the slot's goal, with which kubelet registers from then on. An existing Node stays
        unchanged.
        """
        ...

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        """Set the settings of the slot's goal and bring this host's registry logins for them. They take effect at the
        next start of the slot's machine.

        Raises:
            Rejected: no node could use them; the message names the field.
        """
        ...

    def logins(self, slot: Slot) -> bytes:
        """Return the slot's registry logins in the form of `PullSecrets.read`; empty for none. Blocking."""
        ...

    async def registered(self, slot: Slot, node_uid: str) -> None:
        """Record the UID of the Node that the slot registered in the record of its build."""
        ...

    def applied(self, slot: Slot) -> BuildRecord | None:
        """Return the record of the slot's build; None when the slot is incomplete.

        Raises:
            Rejected: the file does not match its stored checksum.
        """
        ...


class OperationWork(Protocol):
    """One kind of MachineOperation. The agent's executor dispatches to these; see operations.executor_protocol."""

    def procedure(self, operation: MachineOperation) -> Procedure:
        """Return the operation's procedure; raise Refusal where the operation is not possible."""
        ...

    async def observe(self, target: Target) -> Observation: ...

    async def perform(self, target: Target, action: str, *, before: float) -> str | None: ...
