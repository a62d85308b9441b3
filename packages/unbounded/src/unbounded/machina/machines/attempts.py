"""One attempt to provision a host: log in, start the install unless one runs there, and follow it until it ends.

The install is a process of the host. It survives a broken connection and a restart of machina: the next login observes
the host first and starts nothing beside a running install. The first attempt, before it has sent anything, starts
without that observation: the host itself refuses a second run, and no earlier result can belong to this attempt.
`install_of` is its content: the agent's configuration, the script, and its variables.

`reset_over_ssh` is the opposite: it removes the agent and the node, before the Machine is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from unbounded.api.conditions import ConditionReason
from unbounded.api.configuration import NodeSettings
from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.api.machine import Machine, SSHHop
from unbounded.join import agent_install
from unbounded.join.agent_config import config_text
from unbounded.join.bootstrap_tokens import UsableToken
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log, SecretStr
from unbounded.machina.machines.conditions import CannotBegin, OutOfTime
from unbounded.machina.machines.eligibility import is_first, repeats
from unbounded.machina.machines.host_runs import HostRun, HostRuns
from unbounded.machina.provisioning import model
from unbounded.machina.provisioning.model import Install
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.model import FirstUse, Shell, Ssh, SshRejected, SshRoute

RECONNECT: Final = Backoff(2.0, 30.0)  # between connections to a host on which an install may run
REPORT_MARGIN_S: Final = 120.0  # beyond the limit of the install, for the host to stop it and report that
MAX_STARTS: Final = 3  # starts of one attempt: it may have to wait for an older install before its own

log = Log("machines")


@dataclass(frozen=True)
class HostRoute:
    """Route to a host.

    Args:
        generation: of the Machine that the route was read from.
    """

    route: SshRoute
    generation: int


@dataclass(frozen=True)
class AttemptJob:
    """Data of one attempt.

    Args:
        resume: the attempt was started before and may run on the host.
        host: host:port of the attempt, which must not change; None if it was not recorded.
        route: returns the route; called before every login, as Secrets may be replaced meanwhile.
        cannot_begin: raised if an install would have to be started; None if it can be.
    """

    machine: str
    attempt: str
    resume: bool
    host: str | None
    route: Callable[[], Awaitable[HostRoute]]
    first_use: FirstUse
    install: model.Install
    cannot_begin: Failure | None = None


@dataclass(frozen=True)
class AttemptLimits:
    """Limits of an attempt.

    Args:
        whole_s: of the install, as long as it is known to run.
        silence_s: without news from the host.
    """

    whole_s: float
    silence_s: float


async def carry_out(
    job: AttemptJob, run: HostRun, runs: HostRuns, ssh: Ssh, installer: model.Installer, limits: AttemptLimits
) -> model.ObservedRun:
    """Carry out an attempt and return the result of the install on the host.

    Raises:
        Failure: the install could not be started, or not be followed until its end in time.
    """
    loop = asyncio.get_running_loop()
    try:
        async with (
            asyncio.timeout(limits.whole_s + REPORT_MARGIN_S) as whole,
            asyncio.timeout(limits.silence_s) as silence,
        ):

            def heard() -> None:
                if not silence.expired():
                    silence.reschedule(loop.time() + limits.silence_s)

            def runs_since(seconds: float) -> None:
                if not whole.expired():
                    whole.reschedule(loop.time() + max(limits.whole_s + REPORT_MARGIN_S - seconds, 0.0))

            run.on_news = heard
            run.sent = run.touched = job.resume
            return await _until_ended(_AttemptSteps(job, run, runs, installer, runs_since), ssh)
    except TimeoutError as error:
        if whole.expired():
            raise OutOfTime(f"the install has not ended within {limits.whole_s / 60:.0f} minutes") from error
        if silence.expired():
            words = f"the install sent no output for {limits.silence_s / 60:.0f} minutes; last step: {run.step}"
            raise OutOfTime(words) from error
        raise Transient(f"{run.step}: no answer in time") from error


async def _until_ended(host: _AttemptSteps, ssh: Ssh) -> model.ObservedRun:
    job, run = host.job, host.run
    failures = 0
    lost: Failure
    while True:
        try:
            run.step = "logging in to the host"
            way = await job.route()
            host.accept(way)
            async with ssh.login(way.route, on_first_use=job.first_use) as shell:
                failures = 0
                return await host.work(shell)
        except Uncertain as error:
            run.sent, lost = True, error
        except Transient as error:
            if not run.sent:
                raise
            lost = error
        failures += 1
        run.step = f"the install may still run; connecting again after: {lost}"
        log.debug("connection to the host lost", machine=job.machine, attempt=job.attempt, error=str(lost))
        await asyncio.sleep(RECONNECT.after(failures))


@dataclass
class _AttemptSteps:
    """Steps of an attempt after the login."""

    job: AttemptJob
    run: HostRun
    runs: HostRuns
    installer: model.Installer
    runs_since: Callable[[float], None]
    begun: int = 0

    def accept(self, way: HostRoute) -> None:
        """Use a route; raise Rejected if it leads to another host, as the install would run on two hosts under one
        name.
        """
        if self.job.host not in (None, str(way.route.host.at)):
            raise Rejected(f"spec.ssh.host changed during the setup of {self.job.host}")
        self.run.version, self.run.generation = way.route.host.identity.version, way.generation

    async def work(self, shell: Shell) -> model.ObservedRun:
        remote = await (self._begin(shell) if self._is_new() else self._observe(shell))
        while True:
            match remote:
                case model.RunInProgress():
                    remote = await self._follow(shell, remote)
                case model.Finished() | model.Interrupted() if self._is_its_end(remote):
                    await self._clear(shell)
                    return remote
                case model.NoRun() | model.Finished() | model.Interrupted():
                    remote = await self._begin(shell)

    def _is_new(self) -> bool:
        """Return whether the host can know neither this attempt nor an earlier one with the same goal."""
        return not self.run.sent and is_first(self.job.attempt)

    async def _observe(self, shell: Shell) -> model.ObservedRun:
        self.run.step = "checking for an install on the host"
        remote = await self.installer.observe(shell, self.job.install.uid)
        self.run.touched = self.run.touched or remote != model.NoRun()
        self.run.on_news()
        return remote

    def _is_its_end(self, remote: model.Finished | model.Interrupted) -> bool:
        """Return whether the result belongs to this attempt, or is the success of an earlier one that machina lost
        sight of.
        """
        if remote.attempt == self.job.attempt:
            return True
        return isinstance(remote, model.Finished) and remote.status == 0 and repeats(self.job.attempt, remote.attempt)

    async def _begin(self, shell: Shell) -> model.ObservedRun:
        if self.job.cannot_begin is not None:
            raise self.job.cannot_begin
        if self.begun >= MAX_STARTS:
            raise Transient("the install was started, but the host has no record of it")
        self.begun += 1
        before, self.run.touched = self.run.touched, True
        self.run.step = "uploading the install"
        try:
            remote = await self.installer.begin(shell, self.job.install)
        except Transient:  # the host has not received the upload
            self.run.touched = before
            raise
        except model.HostRefuses:
            if not await self._clear(shell):  # for example, the user may not become root
                self.run.touched = before
            raise
        self.run.sent = True
        self.run.on_news()
        return remote

    async def _follow(self, shell: Shell, running: model.RunInProgress) -> model.ObservedRun:
        self.run.sent = True
        if running.attempt == self.job.attempt:
            self.run.step = "the install is running"
            self.runs_since(running.seconds)
        else:
            self.run.step = "waiting for an older install to end"
        if running.progress:
            self.runs.report_progress(self.job.machine, self.run, running.progress)
        return await self.installer.follow(shell, self.job.install, self._report_progress)

    def _report_progress(self, text: str) -> None:
        self.runs.report_progress(self.job.machine, self.run, text)

    async def _clear(self, shell: Shell) -> bool:
        """Clear the run's folder; return False if the host refuses that, too.

        Remaining files do no harm: the run removes secrets itself when it ends.
        """
        try:
            await self.installer.clear(shell, self.job.install.uid)
        except Failure as error:
            log.warning("cannot remove the folder of the install", error=error, machine=self.job.machine)
            return not isinstance(error, model.HostRefuses)
        return True


async def reset_over_ssh(
    run: HostRun,
    *,
    machine: str,
    uid: str,
    generation: int,
    route: Callable[[], Awaitable[SshRoute]],
    first_use: FirstUse,
    ssh: Ssh,
    installer: model.Installer,
    report: Callable[[HostRun, str], None],
    limit_s: float,
) -> model.Finished:
    """Reset a host and return the result.

    Raises:
        Failure: the reset could not be started, or its result is unknown.
    """
    run.step = "logging in to the host to reset it"
    try:
        async with asyncio.timeout(limit_s):
            way = await route()
            run.version, run.generation = way.host.identity.version, generation
            with _recording_refused_key(run, way):
                async with ssh.login(way, on_first_use=first_use) as shell:
                    run.step = "resetting the host"
                    on_progress = partial(report, run)
                    return await installer.reset(shell, machine, uid, limit_s=limit_s, report=on_progress)
    except TimeoutError as error:
        raise OutOfTime(f"{run.step}: not complete within {limit_s / 60:.0f} minutes") from error


@contextmanager
def _recording_refused_key(run: HostRun, way: SshRoute) -> Iterator[None]:
    """Record the version of the key that was refused as that of the run."""
    try:
        yield
    except SshRejected as error:
        if error.hop == SSHHop.BASTION:
            run.version = way.bastion.identity.version if way.bastion is not None else ""
        raise


def install_of(
    machine: Machine,
    attempt: str,
    facts: ClusterFacts | None,
    token: UsableToken | None,
    settings: ProvisioningSettings,
    node: NodeSettings | None = None,
) -> tuple[Install, Failure | None]:
    """Return the install of one attempt, and the failure if it cannot be started.

    An install without token or facts cannot be started but still be followed.
    """
    uid = machine.lasting_uid
    if facts is None or token is None:
        lacking = "facts about the cluster are missing" if facts is None else "no bootstrap token exists"
        return Install(uid, attempt, SecretStr(""), ""), CannotBegin(ConditionReason.TOKEN_UNUSABLE, lacking)
    setup = agent_install.host_setup(machine, facts, defaults_of(settings), token=token.text.reveal(), settings=node)
    environment = agent_install.install_environment(setup.origin)
    install = Install(
        uid, attempt, SecretStr(config_text(setup.config)), agent_install.install_script(), environment, (token.text,)
    )
    fault = _fault_of(setup.origin)
    return install, CannotBegin(fault.reason, fault.words) if fault.words else None


class OriginFault(NamedTuple):
    """Cause why a host has no agent release to run, and its reason; empty words without a fault."""

    words: str
    reason: ConditionReason


def origin_fault(machine: Machine, settings: ProvisioningSettings) -> OriginFault:
    """Return the cause why a Machine's host has no agent release to run."""
    return _fault_of(agent_install.origin_of(machine.spec.agent, defaults_of(settings).origin))


def _fault_of(origin: agent_install.AgentOrigin) -> OriginFault:
    words = origin.fault
    no_digest = words == agent_install.NO_DIGEST
    return OriginFault(words, ConditionReason.DIGEST_MISSING if no_digest else ConditionReason.SOURCE_MISSING)


def defaults_of(settings: ProvisioningSettings) -> agent_install.HostDefaults:
    """Return machina's defaults for all hosts: releases come from the configured source, else from the mirror."""
    origin = agent_install.AgentOrigin(
        version=settings.agent_version,
        base_url=settings.agent_base_url or settings.artifact_mirror,
        url=settings.agent_url,
        sha256=settings.agent_sha256,
    )
    return agent_install.HostDefaults(origin, settings.artifact_mirror, settings.agent_image)
