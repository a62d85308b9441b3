"""machine-ops-controller: an engine for each site and provider, started with the first Machine of both.

A third party that ships its own deployment calls `run` with its provider, and with `Settings` that name site and
provider. A replaced host joins as a node with the user data for cloud-init that `UserDataBuilder` makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from unbounded.api import core
from unbounded.api.configuration import NodeSettings, node_settings
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS, MachineOperationCredential
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.join.agent_install import NO_DIGEST, HostDefaults, cloud_config, host_setup
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.labels_and_taints import NoVersion, read_bound_version
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.machineops import reasons
from unbounded.machineops.credentials import SiteLogins
from unbounded.machineops.executor import CloudExecutor
from unbounded.machineops.preflight import INDEX_INSTANCE, by_instance
from unbounded.machineops.provider import Provider
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded.machineops.reasons import BOOTSTRAP_DATA_FAILED
from unbounded.machineops.settings import Settings
from unbounded.operations.caches import INDEX_MACHINE, Caches, by_machine
from unbounded.operations.executor_engine import Engine
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.telemetry import OperationMetrics

log = Log("machine-ops-controller")

FACTS_S: Final = 4.0
# longest hold of a worker: a wait for the rate limits of one account must not delay other accounts
BRIEF_S: Final = 0.3

SiteProvider = tuple[str, str]


"""(site, provider)"""


@dataclass(frozen=True)
class MachineOpsCaches:
    """Caches of one process."""

    caches: Caches
    credentials: Cache[MachineOperationCredential]


def create_caches(api: Api, providers: Mapping[str, Provider]) -> MachineOpsCaches:
    """Create the caches of the controller.

    They include Machines of other sites: a label can change during an operation, and two Machines may have one
    instance.
    """
    return MachineOpsCaches(
        Caches(
            operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
            machines=Cache(api, MACHINES, indexes={INDEX_INSTANCE: by_instance(providers)}),
            pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_OPERATIONS}"),
        ),
        Cache(api, MACHINE_OPERATION_CREDENTIALS),
    )


async def run(runtime: Runtime, settings: Settings, providers: Mapping[str, Provider]) -> None:
    """Run the operations on Machines of these providers until cancelled.

    Args:
        providers: by the value of `spec.provider`.
    """
    if settings.epoch is not None:
        runtime = replace(runtime, epoch=ProcessEpoch(settings.epoch))
    reading = create_caches(runtime.api, providers)
    metrics = OperationMetrics(runtime.metrics.registry)
    async with running_caches(runtime, *reading.caches.followed, reading.credentials):
        term = MachineOpsTerm(runtime, settings, providers, reading, metrics)
        await runtime.lead(settings.lease, term.run, settings.election, namespace=settings.lease_namespace)


@dataclass(frozen=True)
class MachineOpsTerm:
    """Engines of one leadership term. Each term starts with empty state."""

    runtime: Runtime
    settings: Settings
    providers: Mapping[str, Provider]
    caches: MachineOpsCaches
    metrics: OperationMetrics

    async def run(self, epoch: ProcessEpoch) -> None:
        """Run until cancelled."""
        settings, api = self.settings, self.runtime.api
        facts = FactsFollower(
            api,
            api.version,
            apiserver_url=settings.api_server_endpoint,
            cluster_dns=settings.cluster_dns,
            release_key=settings.agent_public_key,
            root_ca_namespace="kube-public",
        )
        tokens = TokenFinder(api, UncachedSecrets(api))
        defaults = HostDefaults(settings.origin, settings.artifact_mirror, settings.agent_image)
        builder = UserDataBuilder(api, facts, tokens, defaults)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(facts.run(), name="cluster facts")
            await _wait_facts(facts)
            tasks.create_task(self._engines(builder, epoch), name="engines")

    async def _engines(self, builder: UserDataBuilder, epoch: ProcessEpoch) -> None:
        """Run an engine for each site and provider, from the first Machine or running operation of both."""
        budgets = {name: ScopeBudget(provider.rates) for name, provider in self.providers.items()}
        places: set[SiteProvider] = set()

        def start_engine(place: SiteProvider | None) -> None:
            if place is not None and place not in places and self._is_ours(place):
                places.add(place)
                work = self._engine(place, builder, budgets[place[1]], epoch)
                engines.create_task(work, name=f"engine of {place}")

        caches = self.caches.caches
        async with asyncio.TaskGroup() as engines:
            with (
                caches.machines.subscribed(lambda _old, new: start_engine(_key_of_machine(new))),
                caches.operations.subscribed(lambda _old, new: start_engine(_key_of_operation(new))),
            ):
                self.runtime.serving()
                await asyncio.Event().wait()

    def _is_ours(self, place: SiteProvider) -> bool:
        site, provider = place
        return provider in self.providers and self.settings.site in ("", site)

    async def _engine(
        self, place: SiteProvider, builder: UserDataBuilder, budget: ScopeBudget, epoch: ProcessEpoch
    ) -> None:
        site, provider = place[0], self.providers[place[1]]
        api = self.runtime.api
        logins = SiteLogins(api, self.caches.credentials, provider, namespace=self.settings.secret_namespace)
        machines = self.caches.caches.machines
        executor = CloudExecutor(api, machines, provider, site, logins=logins, budget=budget, user_data=builder.build)
        engine = Engine(
            api,
            executor,
            self.caches.caches,
            epoch=epoch,
            concurrent=self.settings.concurrent,
            brief_s=BRIEF_S,
            now=self.runtime.now,
            emit_event=event_sink(self.runtime.events),
            metrics=self.metrics,
            loop_metrics=self.runtime.metrics,
            tracer=self.runtime.tracer,
        )
        log.info("looking after machines", site=site, provider=provider.name)
        try:
            await engine.run()
        finally:
            await executor.close()


async def _wait_facts(facts: FactsFollower) -> None:
    """Wait until the facts have been read: facts that were not read yet must not be reported as missing."""
    known = asyncio.Event()
    unsubscribe = facts.subscribe(known.set)
    with suppress(TimeoutError):
        async with asyncio.timeout(FACTS_S):
            await known.wait()
    unsubscribe()


def _key_of_machine(machine: Machine | None) -> SiteProvider | None:
    if machine is None or machine.provider is None:
        return None
    return machine.site, machine.provider


def _key_of_operation(operation: MachineOperation | None) -> SiteProvider | None:
    """Return site and provider of the controller that claimed an operation; its Machine may be gone, or have moved
    since.
    """
    if operation is None or operation.terminal or operation.status.execution is None:
        return None
    component, *rest = operation.status.execution.executor.split("/")
    if component != ExecutorKind.CLOUD or not rest:
        return None
    return ("/".join(rest[:-1]), rest[-1])


class UncachedSecrets:
    """Uncached reader of Secrets: replacements are rare and read one or two."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> core.Secret | None:
        try:
            return await self._api.get(SECRETS, name, namespace=namespace)
        except NotFound:
            return None

    async def pace(self) -> None:
        return


@dataclass(frozen=True)
class UserDataBuilder:
    """Builder of user data.

    Args:
        defaults: settings of new hosts that their Machine does not set.
    """

    api: Api
    facts: FactsFollower
    tokens: TokenFinder
    defaults: HostDefaults

    async def build(self, machine: Machine) -> str:
        """Return `#cloud-config` for a new host of this Machine; it contains a token.

        Raises:
            Refusal: a prerequisite is missing.
        """
        if machine.spec.kubernetes is None:
            words = f"Machine {machine.name} has no spec.kubernetes, which a new host needs to join"
            raise Refusal(BOOTSTRAP_DATA_FAILED, words, Cause(code=reasons.KUBERNETES_MISSING))
        facts = self.facts.facts
        if facts is None:
            words = f"facts about the cluster are missing: {self.facts.missing}"
            raise Refusal(BOOTSTRAP_DATA_FAILED, words, Cause(code=reasons.FACTS_MISSING))
        found = await self.tokens.find(machine)
        if found.token is None:
            need = found.need or "no bootstrap token exists"
            raise Refusal(BOOTSTRAP_DATA_FAILED, need, Cause(code=found.reason))
        token, settings = found.token.text.reveal(), await self._settings(machine)
        setup = host_setup(machine, facts, self.defaults, token=token, settings=settings)
        if setup.origin.fault:
            code = reasons.DIGEST_MISSING if setup.origin.fault == NO_DIGEST else reasons.SOURCE_MISSING
            raise Refusal(BOOTSTRAP_DATA_FAILED, setup.origin.fault, Cause(code=code))
        return cloud_config(setup)

    async def _settings(self, machine: Machine) -> NodeSettings | None:
        """Return the settings of the Machine's configuration, without which a new host may have no network access."""
        ref = machine.spec.configuration_ref
        try:
            return None if ref is None else node_settings((await read_bound_version(self.api, ref)).spec.template)
        except (NoVersion, Forbidden) as error:
            cause = Cause(code=reasons.CONFIGURATION_MISSING)
            raise Refusal(BOOTSTRAP_DATA_FAILED, f"spec.configurationRef: {error}", cause) from error
