"""Release of BMC sessions directly after an operation, instead of after a long idle time.

BMCs have few sessions, and deleting one over the connection that is still open saves another TLS handshake.
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
def release_sessions(pool: BmcPool, operations: Cache[MachineOperation], machines: Cache[Machine]) -> Iterator[None]:
    """Release the BMC sessions of operations that end while inside of the context."""

    def changed(old: MachineOperation | None, new: MachineOperation | None) -> None:
        running = old is not None and old.claimed and not old.terminal
        if old is None or not running or not (new is None or new.terminal):
            return
        machine = machines.get(old.spec.machine_ref or "")
        if machine is not None and machine.spec.pxe is not None and machine.spec.pxe.redfish is not None:
            with contextlib.suppress(Rejected):  # invalid address, so there is no session
                pool.release_soon(machine.spec.pxe.redfish.url)

    unsubscribe = operations.subscribe(changed)
    try:
        yield
    finally:
        unsubscribe()
