"""`kubectl unbounded machine manual-bootstrap`: hosts that nobody logs in to."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying import checks, typed
from unbounded.cli.deploying.live import Live, live_machina
from unbounded.cli.deploying.machines import Described, manifest
from unbounded.cli.deploying.origins import require_origin
from unbounded.cli.deploying.reaching import note_unreachable
from unbounded.cli.deploying.token_writing import token_of
from unbounded.cli.plugin.command import DONE, USAGE, CliError, Session, refuse_output
from unbounded.join.agent_config import AgentConfig, agent_config
from unbounded.join.bootstrap import UsableToken
from unbounded.join.cloud_config import cloud_config
from unbounded.join.facts import ClusterFacts, FactsFollower
from unbounded.join.install import AgentOrigin, standalone_script, with_image, with_key, with_mirror
from unbounded.kube.endpoint import endpoint_url
from unbounded.kube.errors import NotFound

FACTS_S: Final = 20.0
NO_DNS: Final = "the cluster has no Service kube-system/kube-dns: the node gets no DNS server; `{telling}` names one"
CLOUD_INIT: Final = "cloud-init"
SCRIPT: Final = "script"


async def run(session: Session) -> int:
    """Print what makes a host a node, with a token in it."""
    args = session.told.args
    refuse_output(session.told, "name", "json", "yaml", "wide", what="a script or user data is printed, see --variant")
    try:
        described = typed.by_hand(args)
    except checks.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    live = await live_machina(session.api)
    facts, token = await asyncio.gather(_facts(session, live), _token(session, described.site))
    machine = await _machine(session, described)
    mirror = str(live.config.get("artifactMirror", ""))
    if not facts.cluster_dns:
        session.printer.warn(NO_DNS.format(telling=live.telling_dns(session.told.program)))
    config = with_mirror(agent_config(machine, facts, token=token.text.reveal()), mirror)
    config = with_image(config, str(live.config.get("agentImage") or ""))
    origin = require_origin(session, machine, live)
    config = with_key(config, origin.public_key)
    note_unreachable(session, facts.apiserver_url, live)
    session.told.out.write(_text(args.variant, config, origin))
    return DONE


def _text(variant: str, config: AgentConfig, origin: AgentOrigin) -> str:
    return cloud_config(config, origin) if variant == CLOUD_INIT else standalone_script(config, origin)


async def _machine(session: Session, described: Described) -> Machine:
    """The Machine as it is described; where it was not, what its object says counts."""
    body = manifest(described)
    try:
        there: dict[str, Any] = await session.api.get(MACHINES.raw(), described.name)
    except NotFound:  # its agent makes it
        return msgspec.convert(body, Machine)
    site = (there["metadata"].get("labels") or {}).get("unbounded-cloud.io/site", "")
    if site != described.site:
        raise CliError(f"--site: Machine {described.name} is of site {site!r}", status=USAGE)
    kubernetes = {**(there["spec"].get("kubernetes") or {}), **body["spec"]["kubernetes"]}
    agent = {**(there["spec"].get("agent") or {}), **body["spec"].get("agent", {})}
    spec = {**there["spec"], "kubernetes": kubernetes, **({"agent": agent} if agent else {})}
    return msgspec.convert({**body, "spec": spec}, Machine)


async def _facts(session: Session, live: Live) -> ClusterFacts:
    """What the cluster says of itself, as machina finds it out.

    Raises:
        CliError: something is missing.
    """
    endpoint = str(live.config.get("apiServerEndpoint", ""))
    follower = FactsFollower(
        session.api,
        session.api.version,
        apiserver_url=endpoint_url(endpoint) if endpoint else "",
        cluster_dns=str(live.config.get("clusterDns", "")),
        root_ca_namespace="" if live.beside else NAMESPACE,  # `unbounded up` says it by cluster-info alone
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
            f"what a node has to know of its cluster is not known: {follower.missing}",
            next_step=f"`{live.telling_endpoint(session.told.program)}` says where it is",
        ) from None
    finally:
        stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _token(session: Session, site: str) -> UsableToken:
    found = await token_of(session.api, site)
    if found is None:
        raise CliError(
            f"site {site} has no bootstrap token that is good now",
            next_step=f"`{session.told.program} site init --name {site}` makes one, or renews it",
        )
    return found.token
