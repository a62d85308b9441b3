"""`kubectl unbounded machine manual-bootstrap`: hosts that machina cannot log in to."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, NodeSettings, node_settings
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import ConfigurationRef
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import machine_manifests, validation
from unbounded.cli.deploy.host_addresses import warn_unreachable
from unbounded.cli.deploy.live_machina import LiveMachina, host_defaults, live_machina, require_origin
from unbounded.cli.deploy.machine_manifests import MachineDescription, manifest
from unbounded.cli.deploy.site_tokens import token_of
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.join.agent_install import cloud_config, host_setup, standalone_script
from unbounded.join.bootstrap_tokens import UsableToken
from unbounded.join.cluster_facts import ClusterFacts, FactsFollower
from unbounded.join.labels_and_taints import NoVersion, read_bound_version
from unbounded.kube.api import NotFound
from unbounded.kube.settings import endpoint_url
from unbounded.machina.configuration_binding import candidate_of, in_order, selecting

FACTS_S: Final = 20.0
NO_DNS: Final = "the cluster has no Service kube-system/kube-dns: the node gets no DNS server; set one with `{telling}`"
CLOUD_INIT: Final = "cloud-init"
SCRIPT: Final = "script"


async def run(session: CommandSession) -> int:
    """Print a script or user data that makes a host a node; it contains a token."""
    args = session.invocation.args
    refuse_output(
        session.invocation, "name", "json", "yaml", "wide", what="the output is a script or user data, see --variant"
    )
    try:
        described = machine_manifests.manual_description_of(args)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    live = await live_machina(session.api)
    facts, token = await asyncio.gather(_facts(session, live), _token(session, described.site))
    machine = await _machine(session, described)
    if not facts.cluster_dns:
        session.printer.warn(NO_DNS.format(telling=live.dns_command(session.invocation.program)))
    require_origin(session, machine, live)
    settings = await _settings(session, machine)
    setup = host_setup(machine, facts, host_defaults(live.settings), token=token.text.reveal(), settings=settings)
    warn_unreachable(session, facts.apiserver_url, live)
    session.invocation.out.write(cloud_config(setup) if args.variant == CLOUD_INIT else standalone_script(setup))
    return DONE


async def _settings(session: CommandSession, machine: Machine) -> NodeSettings | None:
    """Return the settings of the Machine's configuration, or of the one that will select the Machine once it exists.

    Raises:
        CliError: the Machine names a configuration that does not exist.
    """
    ref = machine.spec.configuration_ref
    if ref is None:
        listing = await session.api.list(MACHINE_CONFIGURATIONS)
        candidates = in_order(one for found in listing.items if (one := candidate_of(found)) is not None)
        name = selecting(machine.metadata.labels, candidates)
        if name is None:
            return None
        ref = ConfigurationRef(name=name)
    try:
        return node_settings((await read_bound_version(session.api, ref)).spec.template)
    except NoVersion as error:
        raise CliError(f"spec.configurationRef of Machine {machine.name}: {error}") from None


async def _machine(session: CommandSession, described: MachineDescription) -> Machine:
    """Return the Machine with the described fields; the existing object supplies the others."""
    body = manifest(described)
    try:
        existing: dict[str, Any] = await session.api.get(MACHINES.raw(), described.name)
    except NotFound:  # the agent creates it
        return msgspec.convert(body, Machine)
    site = (existing["metadata"].get("labels") or {}).get("unbounded-cloud.io/site", "")
    if site != described.site:
        raise CliError(f"--site: Machine {described.name} is in site {site!r}", status=USAGE)
    kubernetes = {**(existing["spec"].get("kubernetes") or {}), **body["spec"]["kubernetes"]}
    agent = {**(existing["spec"].get("agent") or {}), **body["spec"].get("agent", {})}
    spec = {**existing["spec"], "kubernetes": kubernetes, **({"agent": agent} if agent else {})}
    return msgspec.convert({**body, "spec": spec}, Machine)


async def _facts(session: CommandSession, live: LiveMachina) -> ClusterFacts:
    """Return the facts about the cluster that machina would find.

    Raises:
        CliError: a fact is missing.
    """
    endpoint = str(live.settings.get("apiServerEndpoint") or "")
    follower = FactsFollower(
        session.api,
        session.api.version,
        apiserver_url=endpoint_url(endpoint) if endpoint else "",
        cluster_dns=str(live.settings.get("clusterDns") or ""),
        release_key=str(live.settings.get("agentPublicKey") or ""),
        root_ca_namespace="" if live.embedded else NAMESPACE,  # `unbounded up` publishes its CA in cluster-info alone
    )
    known = asyncio.Event()
    stop = follower.subscribe(known.set)
    following = asyncio.create_task(follower.run(), name="facts of the cluster")
    try:
        async with asyncio.timeout(FACTS_S):
            while (facts := follower.facts) is None:
                known.clear()
                await known.wait()
            return facts
    except TimeoutError:
        raise CliError(
            f"a fact of the cluster that the node needs is missing: {follower.missing}",
            next_step=f"set the address with `{live.endpoint_command(session.invocation.program)}`",
        ) from None
    finally:
        stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _token(session: CommandSession, site: str) -> UsableToken:
    found = await token_of(session.api, site)
    if found is None:
        raise CliError(
            f"site {site} has no valid bootstrap token",
            next_step=f"create or renew it with `{session.invocation.program} site init --name {site}`",
        )
    return found.token
