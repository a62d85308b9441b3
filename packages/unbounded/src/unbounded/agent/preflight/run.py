"""The preflight and its command: observes the host, requests network services, and assembles the report."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.artifact_cache import BlobStore
from unbounded.agent.artifact_sources import Artifact, artifacts, sandbox_artifact
from unbounded.agent.daemon.identity import has_joined
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import Commands, Units
from unbounded.agent.model import NodeGoal, Slot, SlotFacts
from unbounded.agent.node.pull_secrets import stored_logins
from unbounded.agent.node.settings import added_trust, proxies
from unbounded.agent.node_spec import HostFacts, goal_from_config, host_facts
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight import checks, observe
from unbounded.agent.preflight.checks import host_findings
from unbounded.agent.preflight.observations import HostObservation, ServiceAnswer, SlotObservation
from unbounded.agent.preflight.observe import observe_host
from unbounded.agent.preflight.report import (
    IgnoredChecks,
    PreflightFinding,
    PreflightReport,
    as_json,
    as_text,
    error,
    report,
)
from unbounded.agent.settings import load_config
from unbounded.agent.steps.start_steps import choose_slot
from unbounded.api.failures import Rejected
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Platform
from unbounded.fetch.web import Web
from unbounded.join.agent_config import AgentConfig


def run(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    ignored: IgnoredChecks | None = None,
    fail_on_warnings: bool,
    json: bool,
    colour: bool,
    paths: HostPaths | None = None,
) -> int:
    """Print the report of this host; return the exit status."""
    paths = paths or HostPaths()
    commands = HostCommands()
    config: AgentConfig | Rejected
    unknown_keys: tuple[str, ...] = ()
    try:
        given = load_config(file, environ, paths)
        config, unknown_keys = given.config, given.unknown_keys
    except Rejected as failure:
        config = failure
    report = asyncio.run(
        run_preflight(
            config,
            host_facts(paths, environ),
            paths,
            commands,
            Systemctl(commands),
            unknown_keys=unknown_keys,
            ignored=ignored or NOTHING,
            fail_on_warnings=fail_on_warnings,
        )
    )
    print(as_json(report) if json else as_text(report, colour=colour))
    return 1 if report.failed else 0


NETWORK: Final = ("api-server-reachable", "oci-image-reachable", *checks.ARTIFACTS)
NOTHING: Final = IgnoredChecks()
_URL: Final = re.compile(r"[a-z]+://[^\s'\",][^\s'\"]*")


async def run_preflight(
    config: AgentConfig | Rejected,
    facts: HostFacts,
    paths: HostPaths,
    commands: Commands,
    units: Units,
    *,
    unknown_keys: tuple[str, ...] = (),
    ignored: IgnoredChecks = NOTHING,
    fail_on_warnings: bool = False,
) -> PreflightReport:
    """Check that `start` would succeed with this configuration on this host; return the report. Nothing is changed.

    Args:
        config: the error where there is no valid one, which is reported with the checks that need none.
        unknown_keys: messages about unknown keys of its file.
    """
    host = await observe_host(paths, commands, units)
    if isinstance(config, Rejected):
        wrong = error("agent-config", "configuration", _without_urls(str(config)))
        found = [wrong, *host_findings(host, None), *checks.not_checked(NETWORK)]
    else:
        found = await _findings(config, unknown_keys, facts, paths, host)
    return report(found, ignored, fail_on_warnings=fail_on_warnings)


@dataclass(frozen=True)
class _Answers:
    """Answers of all network services.

    Args:
        image: None where the configuration names none.
        attestation: None where a token or a program is configured.
        sandbox: None where no mirror is named for the sandbox image.
    """

    server: ServiceAnswer
    image: ServiceAnswer | None
    attestation: ServiceAnswer | None
    artifacts: tuple[ServiceAnswer, ...]
    sandbox: ServiceAnswer | None


async def _findings(
    config: AgentConfig, unknown_keys: tuple[str, ...], facts: HostFacts, paths: HostPaths, host: HostObservation
) -> list[PreflightFinding]:
    spec = goal_from_config(config, facts)
    named = list(checks.configuration(config, map(_without_urls, unknown_keys), joined=has_joined(paths)))
    try:
        files, sandbox = artifacts(spec, facts.arch), sandbox_artifact(spec, facts.arch)
    except Rejected as failure:  # its message names the URL
        files, sandbox, named = (), None, [error("agent-config", "configuration", _without_urls(str(failure)))]
    logins = await asyncio.to_thread(stored_logins, paths)
    answers = await _request_all(config, spec, facts.arch, (files, sandbox), BlobStore(paths.artifacts), host, logins)
    by_hand = facts.debootstrap and not spec.image
    return [
        *named,
        *host_findings(host, spec, debootstrap=by_hand),
        *_named(config, host, answers, debootstrap=by_hand),
    ]


def _made(host: HostObservation, spec: NodeGoal) -> bool:
    """Return whether `start` would build no slot here and so fetch nothing."""
    one, two = (
        SlotFacts(slot, exists=found.exists, applied=found.applied, running=found.running)
        for slot, found in ((slot, host.slots.get(slot, SlotObservation())) for slot in Slot)
    )
    try:
        return not choose_slot(one, two, spec).build
    except Rejected:  # the slot is another Machine's, which has a finding of its own
        return False


async def _request_all(
    config: AgentConfig,
    spec: NodeGoal,
    arch: str,
    parts: tuple[tuple[Artifact, ...], Artifact | None],
    shelf: BlobStore,
    host: HostObservation,
    logins: RegistryLogins,
) -> _Answers:
    """Send all requests concurrently. Where `start` would keep the present node, its inputs are not requested.

    Args:
        parts: artifacts of every node, and the sandbox image where a mirror is named for it.
    """
    made = _made(host, spec)
    files, sandbox = parts

    async def image(web: Web) -> ServiceAnswer | None:
        if not spec.image:
            return None
        if made:
            return ServiceAnswer("image of the root file system", "OCIImage", cached=True)
        return await observe.image(web, shelf, spec.image, Platform("linux", arch), logins)

    async def attestation() -> ServiceAnswer | None:
        auth = config.kubelet.auth
        if not config.attest.url or auth.bootstrap_token or auth.exec_credential:
            return None
        return await observe.attestation(config.attest.url)

    async def file(web: Web, one: Artifact) -> ServiceAnswer:
        return (
            ServiceAnswer(f"{one.name} {one.version}", "", cached=True)
            if made
            else await observe.artifact(web, shelf, one)
        )

    trust, by = added_trust(spec.settings), proxies(spec)
    async with Web(trust, observe.PATIENCE, proxies=by) as web, asyncio.TaskGroup() as group:
        server = group.create_task(observe.api_server(spec.api_server, spec.ca_pem.encode()))
        asked_image, asked_attestation = group.create_task(image(web)), group.create_task(attestation())
        requests = [group.create_task(file(web, one)) for one in files]
        asked_sandbox = group.create_task(file(web, sandbox)) if sandbox else None
    return _Answers(
        server.result(),
        asked_image.result(),
        asked_attestation.result(),
        tuple(one.result() for one in requests),
        asked_sandbox.result() if asked_sandbox else None,
    )


def _named(
    config: AgentConfig, host: HostObservation, answers: _Answers, *, debootstrap: bool
) -> Iterator[PreflightFinding]:
    yield checks.api_server(answers.server)
    yield checks.image(answers.image, debootstrap=debootstrap)
    yield from checks.attestation(config, host, answers.attestation)
    for one in answers.artifacts:
        yield checks.artifact(one)
    yield checks.sandbox(answers.sandbox, has_image=not debootstrap)


def _without_urls(message: str) -> str:
    """Remove URLs from a message: the key is enough to correct the value in the file."""
    return _URL.sub("…", message)
