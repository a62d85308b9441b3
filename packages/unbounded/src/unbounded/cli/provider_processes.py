"""Provider processes of `unbounded up`, which run under the account of machine-ops-controller.

A provider brings a cloud's SDK or third-party code, which must not run in the process of the API server.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from unbounded.api.core import LEASES, Lease
from unbounded.api.fields import is_provider_name
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli.child import SILENT_S, STOP_S, ProcessEnd, run_watched
from unbounded.cli.deploy import components
from unbounded.cli.screen import Screen
from unbounded.cli.terminal_text import one_line
from unbounded.explain.facts import scopes_of
from unbounded.kube.api import ApiError
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff, rfc3339, utc_now
from unbounded.kube.credentials import AccountToken
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log
from unbounded.kube.process_epoch import Epoch
from unbounded.machina.settings import ProvisioningSettings as HostSettings
from unbounded.machineops.installed_providers import installed, not_installed
from unbounded.machineops.provider import said
from unbounded.machineops.settings import CANNOT_SERVE, COMPONENT
from unbounded.operations.executor_selection import ExecutorHealth, Unavailability

BACKOFF: Final = Backoff(1.0, 60.0)
STEADY_S: Final = 60.0  # a process that ran this long does not count as failing in a row
FAILURES_IN_A_ROW: Final = 2  # failures in a row, after which a process counts as served only after STEADY_S
TOKEN_EVERY_S: Final = 30.0  # interval of checks; a token is renewed when a fifth of its lifetime is left

POLL_S: Final = 10.0  # interval of checks for a newly installed package, or for another controller
QUIET_S: Final = 30.0  # without a Lease renewal for this long, another controller counts as not serving

log = Log("unbounded")


@dataclass(frozen=True)
class _OtherController:
    """Another machine-ops-controller: its Lease, and the loop time of the last renewal observed."""

    lease: Lease
    heard_at: float


class ProviderProcesses:
    """Processes of providers; each starts with the first Machine that names the provider.

    Args:
        admin: issues the tokens of their account.
        folder: where their kubeconfig is written.
        hosts: settings that they pass to new hosts.
        absences: gets the providers that are not served.
        next_epoch: returns an epoch later than all before. A process gets one after the process before it has ended.
            All that `unbounded up` started has ended before another `unbounded up` can start anything.
        flags: for their logs.
    """

    def __init__(
        self,
        admin: HttpApi,
        folder: Path,
        screen: Screen,
        hosts: HostSettings,
        *,
        absences: ExecutorHealth,
        next_epoch: Callable[[], Epoch],
        flags: Sequence[str] = (),
    ) -> None:
        self._admin = admin
        self._folder = folder
        self._screen = screen
        self._absences = absences
        self._next_epoch = next_epoch
        self._flags = (*_host_flags(hosts), *flags)
        self._environments: dict[str, Mapping[str, str]] = {}
        self._named: set[str] = set()
        self._served: set[str] = set()
        self._others: dict[str, _OtherController] = {}
        self._may_log_in = asyncio.Event()

    def set_environment(self, name: str, environment: Mapping[str, str]) -> None:
        """Set environment variables for the process of a provider, before it is started."""
        self._environments[name] = environment

    async def run(self, machines: Cache[Machine]) -> None:
        """Run the processes until cancelled, and end them then."""
        async with asyncio.TaskGroup() as tasks:

            def on_machine(machine: Machine | None) -> None:
                name = None if machine is None else machine.provider
                if machine is None or name is None or name in self._named:
                    return
                if not self._named:
                    tasks.create_task(self._log_in(), name="token of providers")
                    tasks.create_task(self._watch_other_controllers(machines), name="other controllers")
                    tasks.create_task(self._publish(), name="unserved providers")
                self._named.add(name)
                if name in installed():
                    self._served.add(name)
                else:
                    self._screen.print_message(one_line(f"Machine {machine.name}: {_not_installed(name)}"))
                if is_provider_name(name):  # other names can have no process; their operations report that
                    tasks.create_task(self._run_provider(name, machines), name=f"provider {name}")

            with machines.subscribed(lambda _old, new: on_machine(new)):
                await asyncio.Event().wait()

    async def _watch_other_controllers(self, machines: Cache[Machine]) -> None:
        """Warn once of each other machine-ops-controller that serves Machines whose providers run here."""
        leases, announced = Cache(self._admin, LEASES, namespace=NAMESPACE), set[str]()

        def on_lease(old: Lease | None, new: Lease | None) -> None:
            if old is None or new is None or not _is_renewed(old, new):
                return
            self._others[new.metadata.name] = _OtherController(new, asyncio.get_running_loop().time())
            if new.metadata.name not in announced and new.metadata.name in _leases_of_others(
                machines.all(), self._served
            ):
                announced.add(new.metadata.name)
                self._screen.print_message(one_line(_warning_of_other(new)))

        with leases.subscribed(on_lease):
            await leases.run()

    @property
    def _kubeconfig(self) -> Path:
        return self._folder / "kubeconfig"

    async def _log_in(self) -> None:
        """Write a token of their account to the file that their kubeconfig names, and renew it."""
        await asyncio.to_thread(self._write_kubeconfig)
        tokens = AccountToken(
            f"service account {COMPONENT}", partial(self._admin.token, COMPONENT, namespace=NAMESPACE)
        )
        written = ""
        while True:
            try:
                token = (await tokens.login()).token
                if token and token != written:
                    await asyncio.to_thread(write_durably, self._folder / "token", token.encode())
                    written = token
                    self._may_log_in.set()
            except (ApiError, OSError) as error:
                log.warning("cannot issue a token for providers", error=error)
            await asyncio.sleep(TOKEN_EVERY_S if written else BACKOFF.base_s)

    def _write_kubeconfig(self) -> None:
        config = self._admin.config
        cluster = {
            "server": config.server,
            "certificate-authority-data": base64.b64encode(config.ca or b"").decode(),
        }
        name = COMPONENT
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"tokenFile": "token"}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._kubeconfig, yaml.safe_dump(body).encode())

    def _absence_of(self, name: str, machines: Cache[Machine]) -> Unavailability | None:
        """Return why a provider that is not installed here is not served; None where another controller serves it."""
        own = _leases_of_others(machines.all(), {name}, whole=False) & self._others.keys()
        last = max((self._others[lease] for lease in own), key=lambda other: other.heard_at, default=None)
        then = f"`unbounded up` looks for it every {POLL_S:.0f} s"
        if last is None:
            return Unavailability(_not_installed(name), then)
        if asyncio.get_running_loop().time() - last.heard_at <= QUIET_S:
            return None
        spec, where = last.lease.spec, f"Lease {NAMESPACE}/{last.lease.metadata.name}"
        text = f"its controller ({where}) last renewed its Lease at {spec.renew_time}; {_not_installed(name)}"
        return Unavailability(text, then)

    async def _run_provider(self, name: str, machines: Cache[Machine]) -> None:
        """Run the provider's process, and restart it whenever it ends."""
        while name not in await asyncio.to_thread(installed):
            self._absences.report(name, self._absence_of(name, machines))
            await asyncio.sleep(POLL_S)
        self._served.add(name)
        await self._may_log_in.wait()
        loop, failures, how = asyncio.get_running_loop(), 0, ""
        while True:
            self._print(name, "its process has been started; no other machine-ops-controller is needed for it")
            self._absences.report(name, _starting(how))
            began = loop.time()
            epoch = await asyncio.to_thread(self._next_epoch)
            end = await self._run_process(name, epoch, trouble=how if failures >= FAILURES_IN_A_ROW else "")
            steady_s = STEADY_S + (SILENT_S + STOP_S if end.hung else 0.0)
            failures = 1 if loop.time() - began > steady_s else failures + 1
            wait_s = BACKOFF.after(failures)
            how = _end_text(end)
            again = rfc3339(utc_now() + timedelta(seconds=wait_s))
            self._absences.report(name, Unavailability(how, f"the next start is at {again}"))
            self._print(name, f"{how}; restarting in {wait_s:.0f} s")
            await asyncio.sleep(wait_s)

    async def _run_process(self, name: str, epoch: Epoch, *, trouble: str) -> ProcessEnd:
        """Run the process until it has ended, which the next epoch relies on.

        Args:
            trouble: how the processes before it failed in a row, reported until this one has run for STEADY_S. Empty if
                the process counts as served as soon as it reports that it serves.
        """
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

        def is_steady() -> None:
            self._absences.report(name, None)

        def serves() -> None:
            if not trouble:
                is_steady()
                return
            then = f"it was restarted, and counts as served after {STEADY_S:.0f} s without a failure"
            self._absences.report(name, Unavailability(trouble, then, is_problem=False))
            timers.append(loop.call_later(STEADY_S, is_steady))

        def hangs(why: str) -> None:
            what = f"its process does not answer, as {why}"
            log.warning("provider does not respond", provider=name, why=why)
            self._absences.report(name, Unavailability(what, "it is stopped and restarted"))
            self._print(name, f"{what}; it is stopped and restarted")

        config = ("--kubeconfig", str(self._kubeconfig), "--leader-elect", "false", "--epoch", str(epoch))
        addresses = ("--metrics-bind-address", "0", "--health-probe-bind-address", "0")
        try:
            return await run_watched(
                "unbounded.machineops.main",  # it imports the SDKs
                *("controller", "--provider", name, *config, *addresses, *self._flags),
                environment={**os.environ, **self._environments.get(name, {})},
                serves=serves,
                hangs=hangs,
            )
        finally:
            for timer in timers:
                timer.cancel()

    async def _publish(self) -> None:
        """Publish the providers that are not served and those that are starting, for the process of `why`."""
        known: dict[str, Unavailability] = {}
        changed = asyncio.Event()
        with self._absences.subscribed(lambda _provider, _absence: changed.set()):
            while True:
                await changed.wait()
                changed.clear()
                now = self._absences.all()
                try:
                    await components.publish_absent(self._admin, dict.fromkeys(known) | now)
                    known = now
                except ApiError as error:
                    log.warning("cannot publish the unserved providers", error=error)
                    changed.set()
                    await asyncio.sleep(TOKEN_EVERY_S)

    def _print(self, name: str, text: str) -> None:
        self._screen.print_message(f"provider {one_line(name)}: {one_line(text)}")


def _is_renewed(old: Lease, new: Lease) -> bool:
    """Return whether a live holder renewed the Lease."""
    return bool(new.spec.holder_identity) and old.spec.renew_time != new.spec.renew_time


def _leases_of_others(machines: Iterable[Machine], providers: Collection[str], *, whole: bool = True) -> set[str]:
    """Return names of Leases with which another machine-ops-controller may lead for Machines of these providers.

    Args:
        whole: include controllers that serve all providers that they have.
    """
    places = {(one.site, one.provider) for one in machines if one.provider in providers}
    controllers = ("/".join(filter(None, (COMPONENT, site, provider))) for site, provider in places)
    scopes = (one for controller in controllers for one in scopes_of(controller).items())
    return {lease for lease, (_site, provider) in scopes if whole or provider}


def _warning_of_other(lease: Lease) -> str:
    return (
        f"warning: {lease.spec.holder_identity} holds Lease {NAMESPACE}/{lease.metadata.name}: another "
        f"{COMPONENT} serves the same Machines. No action is executed twice, but operations take longer: "
        "stop one of them."
    )


def _starting(how: str) -> Unavailability:
    """Return the state of a provider whose process is starting.

    Args:
        how: the end of the process before it; empty for the first one.
    """
    if not how:
        return Unavailability("its process was started, and is not ready yet", is_problem=False)
    return Unavailability(how, "it was restarted, and is not ready yet", is_problem=False)


def _end_text(end: ProcessEnd) -> str:
    """Describe how a process has ended, and why."""
    words = said(end.last_words.removeprefix(f"{COMPONENT}: ").removeprefix("error: "))
    if end.hung:
        return f"its process did not respond, as {end.hung}, and was stopped"
    if end.status == CANNOT_SERVE:
        return f"it cannot be served: {words or 'see its error output'}"
    return f"its process has ended (status {end.status}{f': {words}' if words else ''})"


def _not_installed(name: str) -> str:
    """Describe the cause for a Machine that names a provider without a package here, and its fix."""
    return (
        f"{not_installed(name)}. If the name is wrong, correct the annotation; to correct spec.provider, "
        "delete the Machine and create it again. If it is right, install the package of the provider "
        "beside unbounded, or deploy its controller separately"
    )


def _host_flags(hosts: HostSettings) -> list[str]:
    """Return the settings of new hosts as flags of machine-ops-controller."""
    given = (
        ("--api-server-endpoint", hosts.apiserver_endpoint),
        ("--cluster-dns", hosts.cluster_dns),
        ("--artifact-mirror", hosts.artifact_mirror),
        ("--agent-version", hosts.agent_version),
        ("--agent-base-url", hosts.agent_base_url),
        ("--agent-url", hosts.agent_url),
        ("--agent-sha256", hosts.agent_sha256),
        ("--agent-public-key", hosts.agent_public_key),
        ("--agent-image", hosts.agent_image),
    )
    return [word for flag, value in given if value for word in (flag, value)]
