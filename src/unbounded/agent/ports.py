"""What the agent needs from outside itself, in its own words. Real parts stand in host/ and node/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from unbounded.agent.model import Applied, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.api.node_settings import NodeSettings
from unbounded.api.operation import MachineOperation
from unbounded.operations.ports import Target
from unbounded.operations.procedure import Procedure, Sight

Tell = Callable[[str], None]  # progress, for a person: "containerd 2.1.8: 42 %"


@dataclass(frozen=True)
class Ran:
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
    """Programs of the host. Argument lists only; never a shell line that is put together."""

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Ran:
        """Run to the end.

        Args:
            env: beside that of the agent.
            check: raise when the status is not 0.
        Raises:
            Rejected: there is no such program.
            Transient: it failed (the last lines of stderr are in the message), or took too long and was killed.
        """
        ...


@dataclass(frozen=True)
class UnitFacts:
    """A unit as systemd sees it.

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

    async def look(self, unit: str) -> UnitFacts: ...
    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None: ...
    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None: ...
    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None: ...
    async def kill(self, unit: str, signal: str = "SIGKILL") -> None: ...
    async def enable(self, *units: str) -> None: ...
    async def disable(self, *units: str) -> None: ...
    async def mask(self, *units: str) -> None: ...
    async def unmask(self, *units: str) -> None: ...
    async def reset_failed(self, unit: str) -> None:
        """Forget failures and start limits; nothing happens to a unit that has none."""
        ...

    async def reload(self) -> None:
        """daemon-reload."""
        ...


class Nodes(Protocol):
    """The slots. Everything may be cut off anywhere and called again; nothing waits without a limit."""

    async def look(self, slot: Slot) -> SlotFacts: ...

    async def build(self, slot: Slot, goal: NodeGoal, access: KubeletAccess, tell: Tell) -> None:
        """Make the slot from scratch: root file system, binaries, configuration, nspawn files, and last what it was
        made from (Applied). Whatever half-built slot was there is removed first. It is not started.

        Raises:
            Transient, Rejected: what could not be got or done; nothing of the slot counts as whole.
        """
        ...

    async def start(self, slot: Slot) -> None:
        """The machine runs and answers, containerd and kubelet are started in it. Returns when kubelet is active.

        Raises:
            Transient: not within the limits.
        """
        ...

    async def stop_services(self, slot: Slot) -> None:
        """kubelet, then containerd; one that hangs is killed within the limits. Nothing happens where none runs."""
        ...

    async def stop(self, slot: Slot) -> None:
        """The machine is down and does not come back by itself at boot; first gently, then by force."""
        ...

    async def remove(self, slot: Slot) -> None:
        """Nothing is left of the slot: files, nspawn configuration, Applied (first). It must be stopped."""
        ...

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        """The client certificate that kubelet has in the slot, with its key; None when there is none yet."""
        ...

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        """kubelet in a whole slot has this certificate from now on; its services are stopped for it, and stay so."""
        ...

    async def kubelet_trouble(self, slot: Slot) -> str:
        """Return why kubelet in the slot that runs is not well, and how it ended last; empty when it is well."""
        ...

    async def sandbox_trouble(self, slot: Slot) -> str:
        """Run a Pod sandbox in the slot that runs, and remove it; return why it does not run, empty when it did."""
        ...

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        """The slot's goal has these labels and taints from now on, and kubelet would register with them; a Node that is
        there is not changed by it."""
        ...

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        """The slot's goal has these settings from now on, and the logins that this host keeps for them; they
        are in force when its machine starts the next time.

        Raises:
            Rejected: no node could use them; the message names the field.
        """
        ...

    def logins(self, slot: Slot) -> bytes:
        """Return the logins for registries that a slot has, as `PullSecrets.read` does; empty for none. Blocking."""
        ...

    async def registered(self, slot: Slot, node_uid: str) -> None:
        """Remember the Node that the slot became, in its Applied."""
        ...

    def applied(self, slot: Slot) -> Applied | None:
        """What the slot was made from, when it is whole.

        Raises:
            Rejected: the file does not have the checksum that stands beside it.
        """
        ...


class Work(Protocol):
    """One kind of MachineOperation. The executor of the agent puts these together; see operations.ports.Executor."""

    def procedure(self, operation: MachineOperation) -> Procedure:
        """Its table; raises operations.ports.Refusal where it cannot be done as asked."""
        ...

    async def observe(self, target: Target) -> Sight: ...

    async def perform(self, target: Target, action: str, *, before: float) -> str | None: ...
