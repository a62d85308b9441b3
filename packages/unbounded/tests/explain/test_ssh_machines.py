"""Machines over SSH that are stuck, each with the one right explanation.

machina's own loop runs, in virtual time, against made-up hosts. The test applies the remedy, and the Machine continues.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import asyncssh
import pytest

from tests.explain.staging import MACHINA, abouts, beat, commands, typed, why
from tests.machina.machines.world import BASTION, HOST, KEY, SETTINGS, Cluster, KnownFacts
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.conditions import ConditionReason
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.explain.links import ExplainLink, Topic
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.kube.clock import rfc3339
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.model import SshReason

PATCH: Final = "kubectl patch mach m1 --type=merge -p "
STATUS: Final = "kubectl patch mach m1 --subresource=status --type=merge -p "
SECRET: Final = "kubectl -n unbounded-kube create secret generic key --from-file=ssh-privatekey=FILE"
TRY: Final = "ssh ubuntu@10.0.0.1 true"
JUMP: Final = "ssh -J jump@192.0.2.1 ubuntu@10.0.0.1 true"
OUTPUT: Final = "kubectl unbounded logs m1 --part install"
SITE: Final = "kubectl unbounded site init --name SITE"
NO_NAME: Final = PATCH + """'{"spec": {"kubernetes": {"bootstrapTokenRef": null}}}'"""
AGAIN: Final = "kubectl unbounded machine allow-join m1"
UNREACHABLE: Final = "SSHReachable=False (Unreachable)"
FAILED: Final = "Provisioning=False (Failed)"
RETRIED: Final = (
    FAILED,
    *(
        f"Provisioning=False ({reason})"
        for reason in (
            "TimedOut",
            "HostKeyChanged",
            "SudoRefused",
            "DiskFull",
            "ReleaseNotFound",
            "ArtifactNotFound",
            "CommandMissing",
            "PreflightFailed",
            "ImageMissing",
        )
    ),
)
NO_TOKEN: Final = "Provisioning=False (TokenUnusable)"
LOST_TOKEN: Final = "Provisioning=False (TokenNotRenewable)"
NO_KEY: Final = "Provisioning=False (SecretUnusable)"
VIA: Final = {"ssh": {"bastion": {"host": BASTION, "username": "jump"}}}

LOCKED: Final = (  # `open sesame` opens it
    asyncssh.generate_private_key("ssh-ed25519").export_private_key("pkcs8-pem", passphrase="open sesame").decode()
)
USUAL: Final = SETTINGS
UNDONE_S: Final = 35.0  # a probe is made every 30 s; by itself, what failed is not tried again in so short a time

Do = Callable[[Cluster], Awaitable[Any]]


async def ask(cluster: Cluster, **options: Any) -> tuple[ExplainLink, ...]:
    return await why(cluster.api, "m1", topic=Topic.MACHINE, **options)


async def key_and_token(cluster: Cluster) -> None:
    await cluster.secrets()


async def token_alone(cluster: Cluster) -> None:
    await cluster.token()


async def key_alone(cluster: Cluster) -> None:
    await cluster.key()


async def another_key(cluster: Cluster) -> None:
    await cluster.key(KEY.replace("made up", "another"))


def locked_key(passphrase: str) -> Do:
    """A Secret with a key that `open sesame` opens, and with this."""

    async def key(cluster: Cluster) -> None:
        await cluster.key(LOCKED, passphrase=passphrase)
        await cluster.token()

    return key


def host(*, at: str = HOST, **dials: Any) -> Do:
    """Turn dials of a host."""

    async def turn(cluster: Cluster) -> None:
        for name, value in dials.items():
            setattr(cluster.hosts[at], name, value)

    return turn


def install(**dials: Any) -> Do:
    """Turn dials of the install on the host."""

    async def turn(cluster: Cluster) -> None:
        installs = await cluster.installs()
        for name, value in dials.items():
            setattr(installs, name, value)

    return turn


def expiring(at: str) -> Do:
    async def token(cluster: Cluster) -> None:
        await cluster.key()
        await cluster.token(expiration=at)

    return token


async def groupless(cluster: Cluster) -> None:
    await cluster.key()
    await cluster.token(**{"auth-extra-groups": "system:bootstrappers:others"})


async def refused(cluster: Cluster) -> None:
    await cluster.secrets()
    cluster.hosts[HOST].refused.add(await cluster.version())


async def refused_at_bastion(cluster: Cluster) -> None:
    await cluster.secrets()
    cluster.hosts[BASTION].refused.add(await cluster.version())


async def pinned(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.status(ssh={"fingerprint": "SHA256:before"})


async def bastion_pinned(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.status(ssh={"bastionFingerprint": "SHA256:before"})


async def facts_known(cluster: Cluster) -> None:
    cluster.facts.facts, cluster.facts.missing = KnownFacts().facts, None


async def release_named(cluster: Cluster) -> None:
    await cluster.edit(agent={"url": "https://releases.example.com/agent.tar.gz"})


async def type_it(cluster: Cluster) -> None:
    """Type the first command of the explanation, unchanged."""
    await typed(cluster.api, commands(await ask(cluster))[0])


async def type_all(cluster: Cluster) -> None:
    for command in commands(await ask(cluster)):
        await typed(cluster.api, command)


def of_lab(do: Do) -> Do:
    """The same for a Machine with a site."""

    async def labelled(cluster: Cluster) -> None:
        await cluster.api.patch(MACHINES, "m1", {"metadata": {"labels": {LABEL_SITE: "lab"}}})
        await do(cluster)

    return labelled


async def allow_again(cluster: Cluster) -> None:
    await install(status=0, refuses=None, takes_s=5.0)(cluster)
    await typed(cluster.api, AGAIN)


@dataclass(frozen=True)
class Case:
    """One situation.

    Attributes:
        condition: that reports it.
        stage: after the Machine was created, before machina observes it.
        phase, words: of the explanation; `command` is its first one.
        undo: the remedy; the Machine is then set up.
        spec: of the Machine, in addition to the usual.
    """

    id: str
    condition: str
    stage: Do
    phase: str
    words: str
    command: str
    undo: Do
    spec: dict[str, Any] | None = None
    facts: KnownFacts | None = None
    settings: ProvisioningSettings = USUAL


PAST: Final = "2029-01-01T00:00:00Z"
FUTURE: Final = "2040-01-01T00:00:00Z"
NO_FACTS: Final[ClusterFacts | None] = None


async def _down(cluster: Cluster, trouble: SshReason, at: str = HOST) -> None:
    await cluster.secrets()
    cluster.hosts[at].down = trouble


def down(trouble: SshReason, at: str = HOST) -> Do:
    return lambda cluster: _down(cluster, trouble, at)


def both(first: Do, second: Do) -> Do:
    async def do(cluster: Cluster) -> None:
        await first(cluster)
        await second(cluster)

    return do


def failing(**dials: Any) -> Do:
    return both(key_and_token, install(takes_s=5.0, **dials))


CASES: Final = (
    Case(
        "port closed",
        "SSHReachable=False (ConnectionRefused)",
        down(SshReason.REFUSED),
        "Pending",
        "host 10.0.0.1:22: ",
        "systemctl status ssh sshd",
        host(down=None),
    ),
    Case(
        "name not found",
        "SSHReachable=False (NameNotResolved)",
        down(SshReason.NO_NAME),
        "Pending",
        "host 10.0.0.1:22: ",
        "getent hosts 10.0.0.1",
        host(down=None),
    ),
    Case(
        "silent port",
        "SSHReachable=False (TimedOut)",
        down(SshReason.TIMED_OUT),
        "Pending",
        "host 10.0.0.1:22: ",
        TRY,
        host(down=None),
    ),
    Case(
        "no route",
        "SSHReachable=False (NoRoute)",
        down(SshReason.NO_ROUTE),
        "Pending",
        "host 10.0.0.1:22: ",
        "ip route get 10.0.0.1",
        host(down=None),
    ),
    Case(
        "no route to the bastion",
        "SSHReachable=False (NoRoute)",
        down(SshReason.NO_ROUTE, BASTION),
        "Pending",
        "bastion 192.0.2.1:22: ",
        "ip route get 192.0.2.1",
        host(at=BASTION, down=None),
        VIA,
    ),
    Case(
        "no route from the bastion to the host",
        "SSHReachable=False (NoRoute)",
        down(SshReason.NO_ROUTE),
        "Pending",
        "host 10.0.0.1:22: ",
        "ssh jump@192.0.2.1 ip route get 10.0.0.1",
        host(down=None),
        VIA,
    ),
    Case(
        "bastion down",
        UNREACHABLE,
        down(SshReason.UNREACHABLE, BASTION),
        "Pending",
        "bastion 192.0.2.1:22: ",
        JUMP,
        host(at=BASTION, down=None),
        VIA,
    ),
    Case(
        "bastion forbids forwarding",
        "SSHReachable=False (ForwardingProhibited)",
        down(SshReason.NO_FORWARDING, BASTION),
        "Pending",
        "bastion 192.0.2.1:22: ",
        "ssh jump@192.0.2.1 'sudo sshd -T | grep -i -e forwarding -e permitopen'",
        host(at=BASTION, down=None),
        VIA,
    ),
    Case(
        "too many logins",
        "SSHReachable=False (TooManySessions)",
        down(SshReason.TOO_MANY),
        "Pending",
        "host 10.0.0.1:22: ",
        "ssh ubuntu@10.0.0.1 'sudo sshd -T | grep -i -e maxstartups -e maxsessions -e persource'",
        host(down=None),
    ),
    Case(
        "host key changed",
        "Provisioning=False (HostKeyChanged)",
        pinned,
        "Failed",
        "SHA256:before is pinned; nothing was sent to it",
        "kubectl unbounded machine trust-host-key m1",
        type_it,
    ),
    Case(
        "bastion key changed",
        "SSHReachable=False (HostKeyChanged)",
        bastion_pinned,
        "Pending",
        "bastion 192.0.2.1:22: presents the host key SHA256:made-up, but SHA256:before is pinned",
        "kubectl unbounded machine trust-host-key m1",
        type_it,
        VIA,
    ),
    Case(
        "bastion refuses the key",
        "SSHReachable=False (CredentialsRefused)",
        refused_at_bastion,
        "Pending",
        "bastion 192.0.2.1:22: ",
        "ssh-copy-id -i KEY.pub jump@192.0.2.1",
        another_key,
        VIA,
    ),
    Case(
        "Secret missing",
        "Provisioning=False (SecretMissing)",
        token_alone,
        "Failed",
        "Secret unbounded-kube/key does not exist",
        SECRET,
        key_alone,
    ),
    Case(
        "Secret of bastion missing",
        "SSHReachable=False (SecretMissing)",
        key_and_token,
        "Pending",
        "spec.ssh.bastion.privateKeyRef: Secret unbounded-kube/jump-key does not exist",
        SECRET.replace(" key ", " jump-key "),
        lambda cluster: cluster.key(name="jump-key"),
        {"ssh": {"bastion": VIA["ssh"]["bastion"] | {"privateKeyRef": {"name": "jump-key", "namespace": NAMESPACE}}}},
    ),
    Case(
        "key missing in it",
        NO_KEY,
        key_and_token,
        "Failed",
        "Secret unbounded-kube/key has no key id_ed25519; its keys: ssh-privatekey",
        "kubectl -n unbounded-kube describe secret key",
        lambda cluster: cluster.edit(ssh={"privateKeyRef": {"key": "ssh-privatekey"}}),
        {"ssh": {"privateKeyRef": {"name": "key", "namespace": NAMESPACE, "key": "id_ed25519"}}},
    ),
    Case(
        "passphrase wrong",
        "Provisioning=False (PassphraseWrong)",
        both(locked_key("wrong"), host(reads_keys=True)),
        "Failed",
        "Secret unbounded-kube/key: the passphrase does not decrypt the private key",
        "kubectl -n unbounded-kube patch secret key --type=merge -p"
        """ '{"stringData": {"passphrase": "PASSPHRASE"}}'""",
        locked_key("open sesame"),
    ),
    Case(
        "key refused",
        "Provisioning=False (CredentialsRefused)",
        refused,
        "Failed",
        "host 10.0.0.1:22: rejects the key SHA256:of-our-key",
        "ssh-copy-id -i KEY.pub ubuntu@10.0.0.1",
        another_key,
    ),
    Case(
        "key refused behind a bastion",
        "Provisioning=False (CredentialsRefused)",
        refused,
        "Failed",
        "host 10.0.0.1:22: ",
        "ssh-copy-id -i KEY.pub -o ProxyJump=jump@192.0.2.1 ubuntu@10.0.0.1",
        another_key,
        VIA,
    ),
    Case(
        "sudo password",
        "Provisioning=False (SudoRefused)",
        failing(refuses="sudo wants a password", why=ConditionReason.SUDO_REFUSED),
        "Failed",
        "a password",
        """ssh ubuntu@10.0.0.1 -t 'echo "ubuntu ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/unbounded'""",
        allow_again,
    ),
    Case(
        "disk full",
        "Provisioning=False (DiskFull)",
        failing(refuses="no space left on /var", why=ConditionReason.DISK_FULL),
        "Failed",
        "no space left",
        "ssh ubuntu@10.0.0.1 df -h / /var /var/lib",
        allow_again,
    ),
    Case(
        "disk full in the middle",
        "Provisioning=False (DiskFull)",
        failing(status=1, tail="tar: agent: Cannot write: No space left on device\nerror: it cannot be unpacked\n"),
        "Failed",
        "it cannot be unpacked",
        "ssh ubuntu@10.0.0.1 df -h / /var /var/lib",
        allow_again,
    ),
    Case(
        "release not there",
        "Provisioning=False (ReleaseNotFound)",
        failing(status=1, tail="unbounded-cause: ReleaseNotFound\nerror: https://x cannot be had: curl: (22) 404\n"),
        "Failed",
        "the install script ended with status 1: error: https://x cannot be had: curl: (22) 404",
        """kubectl patch mach m1 --type=merge -p '{"spec": {"agent": {"url": "URL"}}}'""",
        allow_again,
    ),
    Case(
        "artifact not there",
        "Provisioning=False (ArtifactNotFound)",
        failing(status=1, tail="unbounded-cause: ArtifactNotFound\nerror: there is no kubelet v1.99.0\n"),
        "Failed",
        "there is no kubelet v1.99.0",
        OUTPUT,
        allow_again,
    ),
    Case(
        "no curl",
        "Provisioning=False (CommandMissing)",
        failing(status=1, tail="unbounded-cause: CommandMissing\nerror: neither curl nor wget is installed\n"),
        "Failed",
        "neither curl nor wget is installed",
        "ssh ubuntu@10.0.0.1 'sudo sh -c \"apt-get install -y curl tar openssl util-linux"
        " || dnf install -y curl tar openssl util-linux\"'",
        allow_again,
    ),
    Case(
        "preflight failed",
        "Provisioning=False (PreflightFailed)",
        failing(status=1, tail="unbounded-cause: PreflightFailed\nerror: the preflight checks failed\n"),
        "Failed",
        "the preflight checks failed",
        OUTPUT,
        allow_again,
    ),
    Case(
        "no image",
        "Provisioning=False (ImageMissing)",
        failing(status=1, tail="unbounded-cause: ImageMissing\nerror: no image of the node is named\n"),
        "Failed",
        "no image of the node is named",
        """kubectl patch mach m1 --type=merge -p '{"spec": {"agent": {"image": "IMAGE"}}}'""",
        allow_again,
    ),
    Case(
        "script exit 1",
        FAILED,
        failing(status=1, tail="fetching\ncurl: (22) 404\n"),
        "Failed",
        "the install script ended with status 1: curl: (22) 404",
        OUTPUT,
        allow_again,
    ),
    Case(
        "attempt timed out",
        "Provisioning=False (TimedOut)",
        both(key_and_token, install(takes_s=600.0)),
        "Failed",
        "the install has not ended within 2 minutes",
        OUTPUT,
        allow_again,
        settings=replace(SETTINGS, provisioning_timeout_s=120.0),
    ),
    Case(
        "token missing",
        NO_TOKEN,
        of_lab(key_alone),
        "Failed",
        "kube-system/bootstrap-token-abc123 does not exist; `kubectl unbounded site init --name lab` creates one",
        SITE.replace("SITE", "lab"),
        type_it,
    ),
    Case(
        "token missing and no site",
        LOST_TOKEN,
        key_alone,
        "Failed",
        "kube-system/bootstrap-token-abc123 does not exist; name another one in spec.kubernetes.bootstrapTokenRef",
        NO_NAME,
        type_all,
    ),
    Case(
        "token of no such name",
        LOST_TOKEN,
        of_lab(key_alone),
        "Failed",
        "Secret kube-system/lab-token does not exist; name another one in spec.kubernetes.bootstrapTokenRef",
        NO_NAME,
        type_all,
        {"kubernetes": {"bootstrapTokenRef": {"name": "lab-token"}}},
    ),
    Case("token expired", LOST_TOKEN, expiring(PAST), "Failed", "expired", NO_NAME, expiring(FUTURE)),
    Case(
        "token without group",
        LOST_TOKEN,
        groupless,
        "Failed",
        "system:bootstrappers:unbounded-agent-daemons",
        NO_NAME,
        type_all,
    ),
    Case(
        "no default token",
        NO_TOKEN,
        key_alone,
        "Failed",
        "no default bootstrap token",
        SITE,
        type_it,
        {"kubernetes": {}},
    ),
    Case(
        "not a release of the agent",
        "Provisioning=False (SourceMissing)",
        key_and_token,
        "Failed",
        "no release of the agent is configured: set spec.agent.url of the Machine, or --agent-url for all hosts",
        """kubectl patch mach m1 --type=merge -p '{"spec": {"agent": {"url": "URL"}}}'""",
        release_named,
        settings=ProvisioningSettings(),
    ),
    Case(
        "no digest of the agent",
        "Provisioning=False (DigestMissing)",
        key_and_token,
        "Failed",
        "the agent's URL uses plain http, and no digest is configured",
        """kubectl patch mach m1 --type=merge -p '{"spec": {"agent": {"sha256": "DIGEST"}}}'""",
        release_named,
        settings=ProvisioningSettings(agent_base_url="http://releases.example.com"),
    ),
    Case(
        "no cluster facts",
        "Provisioning=Unknown (FactsMissing)",
        key_and_token,
        "Pending",
        "facts about the cluster are missing: there is no Service kube-dns",
        "kubectl unbounded install --api-server-endpoint HOST:PORT --cluster-dns IP",
        facts_known,
        facts=KnownFacts(NO_FACTS, "there is no Service kube-dns"),
    ),
)


def _settled(case: Case) -> Callable[[Machine], bool]:
    """Return a predicate for the situation: a fault of an attempt needs one, and its repetition is then reported."""
    return lambda machine: (
        machine.status.phase == case.phase
        and case.words in (machine.status.message or "")
        and (case.condition not in RETRIED or bool(_retry_at(machine)))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id.replace(" ", "-"))
def test_the_answer_and_what_undoes_it(case: Case) -> None:
    async def story() -> None:
        cluster = Cluster(settings=case.settings)
        cluster.hosts[BASTION] = FakeHost()
        cluster.facts = case.facts or KnownFacts()
        await cluster.machine(**(case.spec or {}))
        await case.stage(cluster)
        async with cluster.machina():
            await cluster.until(_settled(case), within_s=400)
            (link,) = await ask(cluster)
            assert link.what.startswith(f"{case.phase}: ")
            assert case.words in link.what
            assert link.held_by == f"condition {case.condition}"
            assert link.since
            assert link.next_step
            assert bool(link.until) == (case.condition in RETRIED)
            assert commands([link])[0] == case.command
            await case.undo(cluster)
            await cluster.until(lambda machine: machine.status.phase != case.phase, within_s=UNDONE_S)

    run_virtual(story())


def story(report: Callable[[Cluster], Awaitable[None]]) -> Callable[[], None]:
    """A test from a story in which machina runs."""

    def test() -> None:
        async def run() -> None:
            cluster = Cluster()
            await cluster.secrets()
            await cluster.machine()
            async with cluster.machina():
                await report(cluster)

        run_virtual(run())

    test.__name__, test.__doc__, test.__module__ = report.__name__, report.__doc__, report.__module__
    return test


@story
async def test_what_fails_again_and_again_can_be_tried_at_once_each_time(cluster: Cluster) -> None:
    await install(takes_s=1.0, status=1)(cluster)
    for counter in range(3):
        await cluster.until(partial(_has_failed, counter=counter), within_s=20)
        assert AGAIN in commands(await ask(cluster))
        await typed(cluster.api, AGAIN)


@story
async def test_provisioning_retry_happens_at_the_announced_time(cluster: Cluster) -> None:
    await install(takes_s=1.0, status=1)(cluster)
    await cluster.until(lambda one: bool(_retry_at(one)), within_s=60)
    (link,) = await ask(cluster)
    machine = await cluster.until(lambda one: one.status.phase == "Provisioning", within_s=120)
    attempt = machine.status.provisioning
    assert attempt is not None
    assert attempt.retry_at is None
    late = datetime.fromisoformat(attempt.started_at) - datetime.fromisoformat(link.until)
    assert timedelta(0) <= late <= timedelta(seconds=2)


def test_a_machina_that_was_restarted_says_anew_when_it_tries_again() -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.registered()
        await install(takes_s=1.0, status=1)(cluster)
        async with cluster.machina():
            await cluster.until(lambda one: bool(_retry_at(one)), within_s=60)
            (before,) = await ask(cluster)
        await asyncio.sleep(3600)
        async with cluster.machina():
            await cluster.until(lambda one: _retry_at(one) not in ("", before.until), within_s=5)
            (after,) = await ask(cluster)
            assert after.until > rfc3339(virtual_now()) > before.until

    run_virtual(run())


def _retry_at(machine: Machine) -> str:
    return (machine.status.provisioning.retry_at or "") if machine.status.provisioning is not None else ""


def _has_failed(machine: Machine, *, counter: int) -> bool:
    """Return whether the attempt with this joinCounter has failed."""
    attempt = machine.status.provisioning
    return attempt is not None and (attempt.join_counter, attempt.failure) == (counter, "Failed")


@story
async def test_it_is_being_set_up(cluster: Cluster) -> None:
    await cluster.until(lambda machine: "step" in (machine.status.message or ""))
    (link,) = await ask(cluster)
    assert link.what.startswith("Provisioning: step ")
    assert link.held_by == "machina"
    assert "its limit is 30 minutes" in link.next_step


@story
async def test_its_agent_does_not_join(cluster: Cluster) -> None:
    await cluster.phase("Joining")
    (link,) = await ask(cluster)
    assert link.what.startswith("Joining: ")
    assert link.what.endswith("; its agent has not reported")
    await cluster.node()
    await cluster.phase("Ready")
    (link,) = await ask(cluster)
    assert link.what == "Ready: Node m1 joined; nothing blocks it"


@story
async def test_an_operation_waits_until_it_is_set_up(cluster: Cluster) -> None:
    """The slot is machina's: the chain goes through the Machine to how far it is."""
    await cluster.until(lambda machine: "step" in (machine.status.message or ""))
    spec = {"operationKind": "NodeReboot", "machineRef": "m1", "startDeadlineSeconds": 3600}
    await cluster.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    links = await why(cluster.api, "op")
    assert abouts(links) == ["operation/op", "machine/m1", "machine/m1"]
    assert "machina releases the lock when the attempt ends" in links[1].next_step
    assert links[2].what.startswith("Provisioning: step ")


def test_a_pause_before_it_is_set_up() -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        pause = {"metadata": {"annotations": {ANNOTATION_PAUSED: "power cut"}}}
        await cluster.api.patch(MACHINES, "m1", pause)
        async with cluster.machina():
            await cluster.until(lambda machine: (machine.status.message or "").startswith("paused"))
            links = await ask(cluster)
            assert abouts(links) == ["machine/m1", "machine/m1"]
            assert links[0].what.count("paused by") == 1
            assert links[0].since
            assert links[1].what.endswith(": power cut")
            await typed(cluster.api, commands(links)[0])
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(run())


@pytest.mark.slow
@story
async def test_a_pause_of_what_has_failed(cluster: Cluster) -> None:
    """The failure is still reported, with its remedy, and its age."""
    await install(takes_s=1.0, refuses="sudo wants a password")(cluster)
    (failed,) = await _asked_when(cluster, "a password")
    await cluster.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "power cut"}}})
    paused = await _asked_when(cluster, "paused by")
    assert abouts(paused) == ["machine/m1", "machine/m1"]
    assert paused[0].what.startswith(f"{failed.what}; paused by annotation")
    assert (paused[0].since, paused[0].fixes) == (failed.since, failed.fixes)
    machine = await cluster.get()
    assert f"{machine.status.phase}: {machine.status.message}" == paused[0].what
    await asyncio.sleep(3600)
    assert await ask(cluster) == paused
    await install(refuses=None)(cluster)
    await typed(cluster.api, commands(paused)[0])
    await cluster.phase("Provisioning", within_s=5)


async def _asked_when(cluster: Cluster, words: str) -> tuple[ExplainLink, ...]:
    await cluster.until(lambda machine: words in (machine.status.message or ""), within_s=60)
    return await ask(cluster)


def test_machina_has_died() -> None:
    """The host is back, and no process notices."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.machine(kubernetes=None)
        cluster.hosts[HOST].down = SshReason.REFUSED
        running = cluster.process()
        await cluster.phase("Pending")
        await cluster.until(lambda machine: "refused" in (machine.status.message or "").lower())
        await running.stop()
        cluster.hosts[HOST].down = None
        await beat(cluster.api, MACHINA, renewed="2029-12-31T23:00:00Z")
        links = await ask(cluster, alive=())
        assert abouts(links) == ["machine/m1", "machina"]
        assert "is not running: Lease" in links[1].what
        async with cluster.machina():
            await cluster.phase("Ready", within_s=60)

    run_virtual(run())


@story
async def test_its_deletion_waits_for_the_reset_of_its_host(cluster: Cluster) -> None:
    await cluster.edit(resetOnDelete=True)
    await cluster.phase("Joining")
    cluster.hosts[HOST].down = SshReason.REFUSED
    await cluster.api.delete(MACHINES, "m1")
    await cluster.until(lambda machine: "being deleted" in (machine.status.message or ""))
    (link,) = await ask(cluster)
    assert "is being deleted, and waits for its finalizers: unbounded-cloud.io/reset; being deleted; " in link.what
    assert "for at most 15 minutes" in link.next_step
    await typed(cluster.api, commands([link])[-1])
    await asyncio.sleep(5)
    assert not (await cluster.api.list(MACHINES)).items


@story
async def test_a_changed_host_key_is_met_at_the_reset_of_its_deletion(cluster: Cluster) -> None:
    """Seen: `trust-host-key` knew of no other key, as it was written of an install and of a probe alone."""
    await cluster.edit(resetOnDelete=True)
    await cluster.phase("Joining")
    cluster.hosts[HOST].fingerprint = "SHA256:another"
    await cluster.api.delete(MACHINES, "m1")
    machine = await cluster.until(lambda machine: _reset_reason(machine) == "HostKeyChanged")
    assert machine.status.phase == "Failed"
    (link,) = await ask(cluster)
    assert [fix.does for fix in link.fixes] == [
        "trusts the key SHA256:another, if it is the server's own",
        "deletes it without a reset; its host stays as it is",
    ]
    await asyncio.sleep(300)
    assert sum(one.resets for one in cluster.installer.hosts.values()) == 0
    await typed(cluster.api, commands([link])[0])
    await asyncio.sleep(15)
    assert not (await cluster.api.list(MACHINES)).items
    assert sum(one.resets for one in cluster.installer.hosts.values()) == 1


@story
async def test_a_reset_on_deletion_names_what_is_wrong_with_its_bastion(cluster: Cluster) -> None:
    cluster.hosts[BASTION] = FakeHost()
    await cluster.edit(resetOnDelete=True, ssh=VIA["ssh"])
    await cluster.phase("Joining")
    cluster.hosts[BASTION].fingerprint = "SHA256:another"
    await cluster.api.delete(MACHINES, "m1")
    machine = await cluster.until(lambda machine: _reset_reason(machine) == "HostKeyChanged")
    assert machine.status.ssh is not None
    assert machine.status.ssh.reset_failed_hop == "bastion"
    await typed(cluster.api, commands(await ask(cluster))[0])
    await asyncio.sleep(15)
    assert not (await cluster.api.list(MACHINES)).items


@pytest.mark.slow
@story
async def test_its_agent_is_to_reset_the_host_and_is_away(cluster: Cluster) -> None:
    await cluster.edit(resetOnDelete=True)
    await cluster.phase("Joining")
    await cluster.status(agent={"version": "v1"})
    await cluster.node()
    await cluster.phase("Ready")
    await cluster.api.delete(MACHINES, "m1")
    await cluster.until(lambda machine: "AgentReset" in (machine.status.message or ""))
    links = await ask(cluster)
    assert abouts(links)[0] == "machine/m1"
    assert abouts(links)[1].startswith("operation/m1-reset-on-delete")
    assert abouts(links)[2] == "unbounded-agent/m1"


def test_an_agent_that_machina_did_not_install() -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        await cluster.status(agent={"version": "v1"})
        async with cluster.machina():
            await cluster.until(lambda machine: "did not install" in (machine.status.message or ""))
            (link,) = await ask(cluster)
            assert "an agent that machina did not install reports from the host" in link.what
            assert commands([link]) == [AGAIN]
            await typed(cluster.api, AGAIN)
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(run())


@pytest.mark.slow
@story
async def test_since_is_the_start_of_the_cause_not_of_the_last_attempt(cluster: Cluster) -> None:
    """Seen: `since` of the last repetition, or of what was wrong before, for a disk that was full for an hour."""
    await failing(status=1, tail="error: gone\n")(cluster)
    await cluster.until(lambda machine: machine.status.phase == "Failed")
    await install(tail="error: No space left on device\n")(cluster)
    machine = await cluster.until(lambda machine: _failure(machine) == "DiskFull", within_s=900)
    first = machine.status.provisioning
    assert first is not None
    began = (await ask(cluster))[0].since
    assert began == first.ended_at
    machine = await cluster.until(lambda machine: _attempts_failed(machine) > first.failures + 1, within_s=7200)
    (link,) = await ask(cluster)
    assert link.since == began
    assert machine.status.provisioning is not None
    assert machine.status.provisioning.ended_at != began
    await install(tail="error: gone\n")(cluster)
    machine = await cluster.until(lambda machine: _failure(machine) == "Failed", within_s=7200)
    assert machine.status.provisioning is not None
    assert (await ask(cluster))[0].since == machine.status.provisioning.ended_at


@story
async def test_since_is_the_time_of_the_reason_despite_an_older_transition(cluster: Cluster) -> None:
    cluster.hosts[HOST].down = SshReason.TIMED_OUT
    machine = await cluster.until(lambda machine: "TimedOut" in _reason(machine))
    silent = machine.status.conditions[0].last_transition_time
    await asyncio.sleep(300)
    cluster.hosts[HOST].down = SshReason.NO_ROUTE
    machine = await cluster.until(lambda machine: "NoRoute" in _reason(machine))
    (link,) = await ask(cluster)
    assert machine.status.conditions[0].last_transition_time == silent
    assert silent < link.since == machine.status.conditions[0].reason_transition_time


@story
async def test_a_secret_that_a_site_shares_is_never_written_over(cluster: Cluster) -> None:
    """Seen: `kubectl create secret … | kubectl apply` of ssh-lab, which all Machines of the site log in with."""
    await refused(cluster)
    await cluster.until(lambda machine: machine.status.phase == "Failed")
    (link,) = await ask(cluster)
    assert [one for one in commands([link]) if "secret" in one] == [
        "kubectl -n unbounded-kube create secret generic ssh-m1 --from-file=ssh-privatekey=FILE"
    ]
    assert link.fixes[0].does == (
        "accepts the key of Secret unbounded-kube/key (ssh-keygen -lf KEY.pub shows SHA256:of-our-key) there"
    )
    assert json.loads(shlex.split(link.fixes[3].command)[-1])["spec"]["ssh"]["privateKeyRef"]["name"] == "ssh-m1"


def _failure(machine: Machine) -> str | None:
    attempt = machine.status.provisioning
    return attempt.failure if attempt is not None else None


def _attempts_failed(machine: Machine) -> int:
    attempt = machine.status.provisioning
    return attempt.failures if attempt is not None and attempt.ended_at is not None else 0


def _reset_reason(machine: Machine) -> str:
    return next((one.reason for one in machine.status.conditions if one.type == "HostReset"), "")


def _reason(machine: Machine) -> str:
    return next((one.reason for one in machine.status.conditions if one.type == "SSHReachable"), "")
