"""Certificates of new BMCs, pinned when their Machine appears instead of by the first operation."""

from __future__ import annotations

from typing import Final, Protocol

from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import Machine
from unbounded.api.operation import OperationKind
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller
from unbounded.kube.errors import ApiError
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.operations.ownership import ExecutorKind, executor_of

WORKERS: Final = 32  # a BMC that does not answer occupies one until its connection times out
UNREACHABLE_BACKOFF: Final = Backoff(base_s=0.5, max_s=300.0)

log = Log("metalman")


class CertificatePinner(Protocol):
    async def pin(self, machine: Machine) -> str:
        """Pin the present certificate of the Machine's BMC; return its fingerprint."""
        ...


class PinController:
    """Makes one TLS handshake with each BMC without a pin, and retries silent BMCs with a backoff of up to five
    minutes.

    Silence is logged once: a BMC without power need not be reported repeatedly, and each operation on it reports its
    own error.
    """

    def __init__(
        self, runtime: Runtime, machines: Cache[Machine], pins: CertificatePinner, *, site: str | None
    ) -> None:
        self._machines = machines
        self._pins = pins
        self._site = site
        self._failures: dict[str, int] = {}  # in a row, by name of the Machine
        self._controller: Controller[str] = Controller("pins", self._pin, workers=WORKERS, metrics=runtime.metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        unsubscribe = self._machines.subscribe(self._changed)
        try:
            await self._controller.run()
        finally:
            unsubscribe()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        """Enqueue a Machine whose pin is missing now; other changes do not shorten the backoff of a silent BMC."""
        changed = new or old
        if changed is None:
            return
        if new is None or not needs_pin(new, self._site):
            self._failures.pop(changed.name, None)
        elif old is None or not needs_pin(old, self._site) or old.spec != new.spec:
            self._failures.pop(changed.name, None)
            self._controller.enqueue(changed.name)

    async def _pin(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not needs_pin(machine, self._site):
            return None
        try:
            await self._pins.pin(machine)
        except ApiError:  # not caused by the BMC
            raise
        except Transient as failure:
            return self._silent(name, failure)
        except Rejected as refusal:  # a correction of the Machine enqueues it again
            log.warning("cannot reach BMC with this configuration", error=refusal, machine=name)
        return None

    def _silent(self, name: str, failure: Transient) -> float:
        """Record that a BMC sent no certificate; return the seconds until the retry."""
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        again_s = UNREACHABLE_BACKOFF.after(failures)
        report = log.warning if failures == 1 else log.debug
        report("BMC does not answer; its certificate is pinned once it does", machine=name, why=str(failure))
        return again_s


def needs_pin(machine: Machine, site: str | None) -> bool:
    """Return whether the Machine is ours and its BMC has neither a pin nor a CA bundle."""
    if site not in (None, machine.site) or executor_of(OperationKind.HOST_REBOOT, machine) is not ExecutorKind.METALMAN:
        return False
    redfish = machine.spec.pxe.redfish if machine.spec.pxe else None
    if redfish is None or not redfish.url.startswith("https:") or redfish.ca_bundle is not None:
        return False
    return machine.status.redfish is None or machine.status.redfish.cert_fingerprint is None
