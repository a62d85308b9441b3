"""Reports of the daemon: to systemd, in its Machine's status, and on the host a deleted Machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from msgspec.structs import replace

from unbounded.agent.cluster_access import ClusterAccess, fingerprint
from unbounded.agent.host_hardware import read_addresses, read_hardware
from unbounded.agent.interfaces import Commands
from unbounded.agent.node.files import HostInputs
from unbounded.agent.node.gpus import gpus_described, read_cdi_result
from unbounded.agent.node.manual_changes import node_modified
from unbounded.agent.node.rootfs import os_release_fields
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight.observe import graphics
from unbounded.agent.recreation.report import ConditionReport
from unbounded.agent.recreation.version_resolution import deleted_machine_message
from unbounded.api.conditions import ConditionType
from unbounded.api.failures import Failure
from unbounded.api.fields import MAX_LIST
from unbounded.api.hardware import ReportedHardware
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_status import MAX_PACKAGE, MAX_RELEASE, HostAddress, HostSystem
from unbounded.join.csr import AGENT, certificate_file
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, rfc3339
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.execution_record import with_nulls

log = Log("agent")


RETRY_BACKOFF: Final = Backoff(base_s=0.5, max_s=30.0)


HOST_EVERY_S: Final = 60.0  # between two observations of the host, which read a few small files and run `ip`
HARDWARE_EVERY_S: Final = 3600.0
REBOOT_REQUIRED: Final = "/run/reboot-required"  # of Debian and Ubuntu
REBOOT_PACKAGES: Final = "/run/reboot-required.pkgs"


class HostObserver:
    """Observer of this host: of its names, addresses and system at each call, and of its hardware once an hour.

    What cannot be read stays as it was read last.

    Args:
        server: URL of the API server that the host reaches from its address.
    """

    def __init__(self, paths: HostPaths, commands: Commands, server: str = "") -> None:
        self._paths = paths
        self._commands = commands
        self._server = server
        self._addresses: tuple[HostAddress, ...] = ()
        self._hardware: ReportedHardware | None = None
        self._hardware_at: float | None = None

    async def observe(self) -> HostSystem:
        """Return the host as it is now."""
        system = await asyncio.to_thread(observe_system, self._paths, self._server)
        now = asyncio.get_running_loop().time()
        try:
            self._addresses = await read_addresses(self._paths, self._commands, system.address or "")
            if self._hardware_at is None or now - self._hardware_at >= HARDWARE_EVERY_S:
                self._hardware_at = now
                self._hardware = await read_hardware(self._paths, self._commands)
        except Failure as error:
            log.warning("cannot read the hardware or the addresses of the host", error=error)
        return replace(system, addresses=self._addresses, hardware=self._hardware)


def observe_system(paths: HostPaths, server: str = "") -> HostSystem:
    """Return the host's names and operating system; what cannot be read is absent. Blocking.

    Args:
        server: URL of the API server that the host reaches from its address.
    """
    inputs = HostInputs(paths)
    release = os_release_fields(inputs.os_release())
    system, version, codename = (release.get(key, "")[:MAX_RELEASE] for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    packages = {one[:MAX_PACKAGE] for one in _lines(paths.at(REBOOT_PACKAGES)) if one}
    return HostSystem(
        hostname=inputs.names().hostname or None,
        address=source_address(server) or None,
        os_id=system or None,
        os_version=version or None,
        os_codename=codename or None,
        kernel=next(iter(_lines(paths.at("/proc/sys/kernel/osrelease"))), None),
        reboot_required=paths.at(REBOOT_REQUIRED).exists(),
        reboot_packages=tuple(sorted(packages))[:MAX_LIST],
        certificate_expires=_certificate_end(certificate_file(paths.identity, AGENT)),
    )


def _certificate_end(path: Path) -> str | None:
    try:
        return rfc3339(x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc)
    except (OSError, ValueError):
        return None


def source_address(server: str) -> str:
    """Return the local address of connections to a server; empty where there is no route, or its name is unknown.

    No packet is sent but those that resolve the name.
    """
    url = urlsplit(server)
    try:
        known = socket.getaddrinfo(url.hostname or "", url.port or 443, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in known:
            with socket.socket(family, kind, protocol) as end, suppress(OSError):
                end.connect(address)
                return str(end.getsockname()[0])
    except (OSError, ValueError):
        return ""
    return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").split("\n")[:-1]
    except OSError:
        return []


class AgentStatusReporter:
    """Writes the agent's status fields whenever the Machine's differ from them, and never otherwise.

    These are its version, the host's boot id and system, and the API server and CA that it uses.

    Args:
        observe: returns the host as it is now.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        machine: str,
        *,
        version: str,
        host_boot_id: str,
        observe: Callable[[], Awaitable[HostSystem]],
        access: ClusterAccess | None = None,
    ) -> None:
        self._status = StatusWriter(api, MACHINES, fields=("agent",), cache=machines)
        self._machines = machines
        self._machine = machine
        self._desired: dict[str, Any] = {"version": version, "hostBootID": host_boot_id, "waitsForGrants": True}
        self._observe_host = observe
        self._host = HostSystem()
        if access is not None:
            self._desired |= {"apiServer": access.server, "clusterCA": fingerprint(access.ca_pem)}
        self._controller: Controller[str] = Controller(
            "agent status", self._reconcile, workers=1, queue=WorkQueue(failed=RETRY_BACKOFF)
        )

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        await self._observe()
        with self._machines.subscribed(self._changed):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._controller.run(), name="agent status")
                while True:
                    await asyncio.sleep(HOST_EVERY_S)
                    if await self._observe():
                        self._controller.enqueue(self._machine)

    async def _observe(self) -> bool:
        """Observe the host; return whether its system is another one."""
        before, self._host = self._host, await self._observe_host()
        self._desired["host"] = msgspec.to_builtins(self._host)
        return before != self._host

    def _changed(self, _old: Machine | None, new: Machine | None) -> None:
        if new is not None and new.name == self._machine and self._differs(new):
            self._controller.enqueue(new.name)

    def _differs(self, machine: Machine) -> bool:
        agent = machine.status.agent
        return agent is None or not self._desired.items() <= msgspec.to_builtins(agent).items()

    async def _reconcile(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None or not self._differs(machine):
            return
        host = with_nulls(self._host)  # a field that is absent now is removed
        await self._status.merge(name, {"agent": {**self._desired, "host": host}})
        log.info("reported", machine=name, version=self._desired["version"])


class DeletedMachineReport:
    """Reports a deleted Machine in the log and in a file that `unbounded-agent status` reads, while it is missing.

    The agent does not create the Machine again: the deletion may be intended.
    """

    def __init__(self, machines: Cache[Machine], machine: str, paths: HostPaths) -> None:
        self._machines = machines
        self._machine = machine
        self._file = paths.machine_missing
        self._is_reported = False

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        try:
            with self._machines.subscribed(lambda _old, _new: self._observe()):
                self._observe()
                await asyncio.get_running_loop().create_future()
        finally:
            self._withdraw()

    def _observe(self) -> None:
        if self._machines.get(self._machine) is not None:
            self._withdraw()
        elif not self._is_reported:
            self._is_reported = True
            words = deleted_machine_message(self._machine)
            log.error(words, machine=self._machine)
            with suppress(OSError):
                self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._file.write_text(f"{words}\n")

    def _withdraw(self) -> None:
        self._is_reported = False
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def host_conditions(paths: HostPaths, types: Collection[str]) -> tuple[ConditionReport, ...]:
    """Return conditions about the host. Blocking.

    Args:
        types: of the conditions that the Machine has.
    """
    found = graphics(paths)
    is_reported = ConditionType.GPUS_DESCRIBED in types
    gpus = gpus_described(read_cdi_result(paths), cards=found.cards, driver=found.driver, is_reported=is_reported)
    return (*node_modified(paths), *(() if gpus is None else (gpus,)))


_TIMES: Final = 3  # watchdog messages in each interval of systemd


class SystemdNotifier:
    """Sender of sd_notify(3) messages. Without a socket it sends nothing.

    Args:
        address: $NOTIFY_SOCKET: a path, or an abstract name that begins with @.
        watchdog_s: systemd's watchdog interval; None for no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._every_s = watchdog_s / _TIMES if watchdog_s else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SystemdNotifier:
        watchdog_usec = environ.get("WATCHDOG_USEC", "")
        return cls(environ.get("NOTIFY_SOCKET", ""), int(watchdog_usec) / 1e6 if watchdog_usec.isdigit() else None)

    def send(self, *states: str) -> None:
        """Send states such as READY=1; an error is only logged, as there is no remedy."""
        if not self._address:
            return
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as line:
                line.setblocking(False)
                line.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.warning("cannot notify systemd", error=error, states=list(states))

    async def keep_alive(self) -> None:
        """Report readiness at once, and then from the event loop that it is alive. A hanging loop sends nothing; an API
        server that does not answer is no reason to stop.
        """
        self.send("READY=1", "WATCHDOG=1")
        while self._every_s is not None:
            await asyncio.sleep(self._every_s)
            self.send("WATCHDOG=1")
