"""When an operation has ended, its BMC gets its session back at once, and not only when it has been idle for long.

BMCs have few sessions, and giving one back over the connection that is still open spares another TLS handshake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.kube.cache import Cache
from unbounded.metalman.redfish.pool import BmcPool


@contextlib.contextmanager
def parting(pool: BmcPool, operations: Cache[MachineOperation], machines: Cache[Machine]) -> Iterator[None]:
    """Follow operations to their ends while inside."""

    def changed(old: MachineOperation | None, new: MachineOperation | None) -> None:
        running = old is not None and old.claimed and not old.terminal
        if old is None or not running or not (new is None or new.terminal):
            return
        machine = machines.get(old.spec.machine_ref or "")
        if machine is not None and machine.spec.pxe is not None and machine.spec.pxe.redfish is not None:
            with contextlib.suppress(Rejected):  # not an address: nobody has spoken to it
                pool.part(machine.spec.pxe.redfish.url)

    unsubscribe = operations.subscribe(changed)
    try:
        yield
    finally:
        unsubscribe()
