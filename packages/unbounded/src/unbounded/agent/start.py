"""`unbounded-agent start`: makes this host a node, or repairs it. It can be interrupted and run again."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.agent.build import this_build
from unbounded.agent.cluster_access import access_of_config
from unbounded.agent.console import PreflightFailed, ProgressOutput, run_to_end
from unbounded.agent.daemon.identity import connected, exec_access, is_set_up, join, kubelet_access
from unbounded.agent.daemon.reporting import HostObserver
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import Nodes, OnProgress
from unbounded.agent.lock import host_lock
from unbounded.agent.model import KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.pull_secrets import PullSecrets
from unbounded.agent.node_spec import HostFacts, goal_from_config, host_facts, require_image, rootfs_image
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight.report import IgnoredChecks, PreflightReport, as_text
from unbounded.agent.preflight.run import NOTHING, run_preflight
from unbounded.agent.recreation.report import bootstrapping
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.recreation.version_resolution import recorded_goal
from unbounded.agent.reset import refuse_if_under_way
from unbounded.agent.settings import load_config, read_stored_config, with_stored_key
from unbounded.agent.steps.start_steps import StartContext, start_steps
from unbounded.agent.steps.step import StepHost, add_all
from unbounded.agent.upgrade.health import DEFAULT_WINDOW_S, UpgradeContext
from unbounded.agent.upgrade.switching import adopt, adopted
from unbounded.api.core import NODES, Node
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine_status import AgentStage
from unbounded.join import tpm
from unbounded.join.agent_config import AgentConfig
from unbounded.join.attest_client import attest
from unbounded.join.attestation import AttestedToken
from unbounded.join.cluster_verification import certificates
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import utc_now
from unbounded.kube.logs import Log, SecretStr

log = Log("agent")

COMMAND: Final = "unbounded-agent start"
NODE_S: Final = 180.0
_POLL_S: Final = 1.0


@dataclass(frozen=True)
class PreflightOptions:
    """Options of the preflight's verdict."""

    ignored: IgnoredChecks = NOTHING
    fail_on_warnings: bool = False


@dataclass(frozen=True)
class StartResult:
    """Result of a start.

    Args:
        changed: names of the steps that were not present before.
        node: description of the observed Node, for a message.
    """

    changed: tuple[str, ...]
    node: str


@dataclass(frozen=True)
class StartInputs:
    """Inputs of a start besides the configuration.

    Args:
        running: the executable of this process.
        node_s: limit of the wait for the Node.
        unknown_keys: messages about keys of the configuration's file that are ignored.
    """

    paths: HostPaths = field(default_factory=HostPaths)
    facts: HostFacts = field(default_factory=HostFacts)
    running: Path = Path(sys.executable)
    node_s: float = NODE_S
    unknown_keys: tuple[str, ...] = ()


_CHECKS: Final = PreflightOptions()


async def start(
    config: AgentConfig,
    around: StartInputs,
    report: OnProgress,
    *,
    checks: PreflightOptions = _CHECKS,
    show: Callable[[PreflightReport], None] = lambda _report: None,
) -> StartResult:
    """Make this host the node of the configuration; change nothing where it already is.

    Args:
        show: receives the report of the preflight.
    Raises:
        Rejected: the host cannot become this node: the preflight failed, the host belongs to another Machine, …
        Transient, Uncertain: a step failed, or the Node does not appear; the next start resumes there.
    """
    paths = around.paths
    commands = HostCommands()
    by_hand = around.facts.debootstrap and not rootfs_image(config.oci_image, around.facts)
    host = StepHost(paths, commands, Systemctl(commands), debootstrap=by_hand)
    async with host_lock(paths, COMMAND):
        refuse_if_under_way(paths)
        config = with_stored_key(config, refuse_another_machine(paths, config))
        await _preflight(config, around, host, checks, show)
        starting = _starting(config, around, host)
        changed = await add_all(start_steps(debootstrap=host.debootstrap), starting, report)
    async with connected(paths, config) as api:
        node = await wait_node(api, starting.nodes, config.machine_name, report, within_s=around.node_s)
    return StartResult(changed, node)


def refuse_another_machine(paths: HostPaths, config: AgentConfig) -> AgentConfig | None:
    """Return the configuration of an earlier start. Raises Rejected where the host belongs to a Machine of another
    name.
    """
    try:
        stored = read_stored_config(paths)
    except Rejected as error:  # start writes it again; slots and certificates name their Machine, too
        log.warning("cannot use the stored configuration", error=error)
        return None
    if stored is not None and stored.machine_name != config.machine_name:
        text = f"MachineName {config.machine_name!r}: this host is Machine {stored.machine_name}"
        raise Rejected(f"{text}; run `unbounded-agent reset` before it becomes another Machine")
    return stored


async def _preflight(
    config: AgentConfig,
    around: StartInputs,
    host: StepHost,
    checks: PreflightOptions,
    show: Callable[[PreflightReport], None],
) -> None:
    report = await run_preflight(
        config,
        around.facts,
        around.paths,
        host.commands,
        host.units,
        unknown_keys=around.unknown_keys,
        ignored=checks.ignored,
        fail_on_warnings=checks.fail_on_warnings,
    )
    show(report)
    if report.failed:
        raise PreflightFailed(
            "the preflight checks failed, and nothing was changed; --ignore-preflight-errors NAMES continues anyway"
        )


def _starting(config: AgentConfig, around: StartInputs, host: StepHost) -> StartContext:
    paths, base = around.paths, goal_from_config(config, around.facts)
    ground = UpgradeContext.of(paths, host.units, around.running)

    known: list[NodeGoal] = []

    async def read_goal() -> NodeGoal:
        if not known:  # build and choice of a slot in one start use the same goal
            async with connected(paths, config) as api:
                spec = require_image(await recorded_goal(api, base), around.facts)
                await PullSecrets(api, paths).bring(spec.settings)
                known.append(spec)
        return known[0]

    host_now = HostObserver(paths, host.commands, access_of_config(config).server)

    async def says(stage: AgentStage, doing: str) -> None:
        agent = {"stage": stage, "host": await host_now.observe()}
        try:
            async with connected(paths, config) as api:
                await RecreationStatusWriter(api, config.machine_name, now=utc_now).report(
                    (bootstrapping(doing),), None, None, agent=agent
                )
        except Failure as error:
            log.warning("cannot report progress in the Machine's status", error=error, doing=doing)

    async def get_identity(report: OnProgress) -> None:
        await join(paths, config, token=await attestation_token(config, report), report=report)

    async def access(report: OnProgress) -> KubeletAccess:
        if (exec_credential := exec_access(config)) is not None:
            return exec_credential
        async with connected(paths, config) as api:
            return await kubelet_access(api, paths, config, report=report)

    async def take_into_use() -> None:
        window_s = config.upgrade.health_window_seconds or DEFAULT_WINDOW_S
        await adopt(ground, version=this_build().version, window_s=window_s)

    return StartContext(
        host=host,
        nodes=HostNodes(paths, host.commands, host.units, arch=around.facts.arch),
        config=config,
        goal=base,
        read_goal=read_goal,
        joined=partial(is_set_up, paths, config),
        join=get_identity,
        access=access,
        says=says,
        adopted=lambda: adopted(ground),
        adopt=take_into_use,
    )


async def attestation_token(config: AgentConfig, report: OnProgress) -> SecretStr | None:
    """Return the bootstrap token from attestation by the host's TPM; None where the configuration has a credential."""
    auth = config.kubelet.auth
    if not config.attest.url or auth.bootstrap_token or auth.exec_credential is not None:
        return None
    report("proving the TPM of this host")
    return verified_token(await attest(config.attest.url, tpm.device()), config)


def verified_token(answer: AttestedToken, config: AgentConfig) -> SecretStr:
    """Return the token of an attestation, which is sealed together with the cluster's CA.

    The configuration may have crossed an unprotected network segment. An attacker's CA that is added to the right one
    is as dangerous as one in its place.

    Raises:
        Rejected: the configuration has a CA that was not sealed.
    """
    given = base64.b64decode(config.cluster.ca_cert_base64).decode()
    if answer.authority and not certificates(given) <= certificates(answer.authority):
        text = "Cluster.CaCertBase64 differs from the CA that was sealed with the token for this TPM"
        raise Rejected(f"{text}: the configuration was modified in transit; the token is not used")
    return SecretStr(answer.text)


async def wait_node(api: Api, nodes: Nodes, name: str, report: OnProgress, *, within_s: float) -> str:
    """Wait for the Node of the running machine, for a kubelet that stays healthy, and for a Pod sandbox that runs;
    return a description of the Node for a message.

    A Node that is not Ready counts, too: its network may come from Pods that are still to run on it.

    Raises:
        Transient: the Node does not appear in time; the daemon runs and takes over.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    before: SlotFacts | None = None
    while True:
        slots = [await nodes.observe(slot) for slot in Slot]
        running = next((one for one in slots if one.running), None)
        observation = await _observe_node(api, nodes, running, name)
        if isinstance(observation, Node):
            lacks = "" if before in (None, running) else "the Machine changes too often"
            # equal twice in a row: a machine that crashes soon after its start does not count
            if running == before and running is not None:
                lacks = await nodes.sandbox_problem(running.slot)
                if not lacks:
                    return f"Node {name} exists{_unready(observation)}; a Pod sandbox ran in {running.slot}"
            before = running
        else:
            before, lacks = None, observation
        if lacks:
            if loop.time() >= until:
                later = "the daemon manages it from now on"
                raise Transient(f"{lacks}, {within_s:g} s after all steps were done; {later}")
            report(f"waiting for Node {name}: {lacks}")
        await asyncio.sleep(_POLL_S)


async def _observe_node(api: Api, nodes: Nodes, running: SlotFacts | None, name: str) -> Node | str:
    """Return the Node of this very machine if its kubelet is healthy; else a message about the missing part."""
    if running is None:
        return "no machine is running: it is being recreated, or does not start"
    try:
        node = await api.get(NODES, name)
    except NotFound:
        return f"kubelet in {running.slot} has not registered its Node"
    except Failure as error:
        return f"the API server does not answer: {error}"
    info = node.status.node_info
    if running.boot_id and (info is None or info.boot_id != running.boot_id):
        return f"the Node's status is from a boot before that of {running.slot}"
    trouble = await nodes.kubelet_problem(running.slot)
    if not running.kubelet:
        return trouble or f"kubelet in {running.slot} does not stay up"
    return trouble or node


def _unready(node: Node) -> str:
    if node.ready:
        return ""
    ready = node.ready_condition
    words = [] if ready is None else [one for one in (ready.reason, ready.message) if one]
    return f", and not Ready yet{': ' if words else ''}{', '.join(words)}"


# The command


def run(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    checks: PreflightOptions = _CHECKS,
    colour: bool = False,
    paths: HostPaths | None = None,
) -> int:
    """Run the command `start`; return its exit status."""
    paths = paths or HostPaths()

    async def main() -> int:
        given = load_config(file, environ, paths)
        for words in given.unknown_keys:
            log.warning("configuration has ignored keys", what=words)
        around = StartInputs(paths, host_facts(paths, environ), unknown_keys=given.unknown_keys)
        config, show = given.config, partial(_show, colour=colour)
        started = await start(config, around, ProgressOutput(), checks=checks, show=show)
        print(f"{started.node}; {_words(started.changed)}")
        return 0

    return run_to_end(main)


def _words(changed: tuple[str, ...]) -> str:
    return f"changed {', '.join(changed)}" if changed else "no changes were necessary"


def _show(report: PreflightReport, *, colour: bool) -> None:
    print(as_text(report, colour=colour), file=sys.stderr)
