"""Faults between a command and its cluster: the message, the remedy, and a wait that outlasts them."""

from __future__ import annotations

import asyncio
import os
import ssl
from argparse import Namespace
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.test_container_cloud_rules import SEED
from tests.cli.plugin.conftest import Cli, Running
from tests.support.embedded_server import embedded_server
from tests.support.proxy import proxy
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plugin.command import INTERRUPTED, CliError, CliInvocation
from unbounded.cli.plugin.errors import message_of
from unbounded.cli.plugin.main import run_command
from unbounded.kube.api import Conflict, ResponseLost, ServerBusy, ServerError, ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

TOLD = CliInvocation(Namespace(), {}, StringIO(), StringIO(), StringIO(), colour=False, terminal=False)
CLUSTER_ROLE_BINDINGS: Kind[dict[str, Any]] = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", dict
)


def _kubeconfig(source: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a kubeconfig with another server or user."""
    body = yaml.safe_load(source.read_text())
    body["clusters"][0]["cluster"] |= changes.get("cluster", {})
    if "user" in changes:
        body["users"][0]["user"] = changes["user"]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    return path


COMMANDS = [["machine", "power-on", "m"], ["machine", "operation", "list"], ["machine", "operation", "list", "-w"]]


@pytest.mark.parametrize("words", COMMANDS, ids=["client", "reader", "watch"])
async def test_a_server_that_is_away_is_named(kubeconfig: Path, tmp_path: Path, words: list[str]) -> None:
    away = _kubeconfig(kubeconfig, tmp_path, cluster={"server": "https://127.0.0.1:1"})
    ran = await Cli(away)(*words)
    assert ran.status == 1
    assert "cannot reach the API server" in ran.err
    assert "no connection to 127.0.0.1:1: refused" in ran.err
    assert "kubectl config view --minify" in ran.err


@pytest.mark.parametrize("name", ["", "a/b", "../../../../api/v1/nodes", "M"])
@pytest.mark.parametrize(
    "words",
    [
        ("logs",),
        ("ssh",),
        ("machine", "serial"),
        ("machine", "reboot"),
        ("machine", "trust-host-key"),
        ("machine", "allow-join"),
        ("machine", "operation", "cancel"),
    ],
    ids=lambda words: words[-1],
)
async def test_a_name_that_is_none_is_refused_before_any_read(
    kubeconfig: Path, words: tuple[str, ...], name: str
) -> None:
    ran = await Cli(kubeconfig)(*words, name)
    what = "OPERATION" if "operation" in words else "MACHINE"
    assert (ran.status, f"error: {what}: {name!r} is not a valid name: lower case" in ran.err) == (2, True), ran.err


async def test_a_machine_that_does_not_exist_is_named_with_what_helps(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(kubeconfig)
    for words in (("logs", "no-such"), ("ssh", "no-such"), ("machine", "serial", "no-such")):
        ran = await cli(*words)
        assert (ran.status, ran.err.splitlines()[0]) == (1, "error: Machine no-such does not exist")
        assert "kubectl get mach" in ran.err
    ran = await cli("logs", "machine/no-such")
    assert (ran.status, "did you mean no-such?" in ran.err) == (2, True)
    ran = await cli("config", "versions", "no-such")
    assert "`kubectl get machineconfigurations.unbounded-cloud.io` lists the existing ones" in ran.err
    for words in (("tree", ""), ("why", ""), ("support", "")):
        ran = await cli(*words)
        assert ran.status == 2, words
    with pytest.raises(SystemExit):
        await cli("ssh")
    assert "error: the following arguments are required: MACHINE\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=["client", "reader", "watch"])
async def test_a_server_with_another_certificate_is_not_trusted(
    kubeconfig: Path, tmp_path: Path, words: list[str]
) -> None:
    strange = {"certificate-authority-data": None, "certificate-authority": None}
    ran = await Cli(_kubeconfig(kubeconfig, tmp_path, cluster=strange))(*words)
    assert ran.status == 1
    assert "is not the one that the kubeconfig trusts" in ran.err


@pytest.mark.parametrize("words", COMMANDS, ids=["client", "reader", "watch"])
async def test_a_login_that_is_refused_is_said_to_be(kubeconfig: Path, tmp_path: Path, words: list[str]) -> None:
    nobody = _kubeconfig(kubeconfig, tmp_path, user={"token": "no such token"})
    ran = await Cli(nobody)(*words)
    assert ran.status == 1
    assert "the server rejected the login" in ran.err
    assert "may have expired" in ran.err


@pytest.mark.slow
async def test_a_missing_right_is_named(kubeconfig: Path, tmp_path: Path, api: HttpApi) -> None:
    issued = await api.token("default", namespace="default")
    weak = Cli(_kubeconfig(kubeconfig, tmp_path, user={"token": issued.token}))
    ran = await weak("machine", "power-on", "m")
    assert ran.status == 1
    assert 'cannot get resource "machines"' in ran.err
    assert "kubectl auth can-i --list" in ran.err
    listed = await weak("machine", "operation", "list")
    assert 'cannot list resource "machineoperations"' in listed.err


@pytest.mark.slow
async def test_server_without_definitions_is_reported_as_such(tmp_path: Path) -> None:
    with embedded_server(tmp_path) as bare:
        for words in (["machine", "power-on", "m"], ["machine", "operation", "list"]):
            ran = await Cli(bare)(*words)
            assert ran.status == 1
            assert "its CustomResourceDefinitions are not installed" in ran.err
            assert "`kubectl unbounded install` installs them" in ran.err


@pytest.mark.parametrize(
    ("words", "says", "helps"),
    [
        (["--context", "nowhere"], "contexts has no entry 'nowhere'", "kubectl config get-contexts"),
        (["--kubeconfig", "/nonexistent"], "/nonexistent: No such file", "--kubeconfig"),
    ],
    ids=["context", "kubeconfig"],
)
async def test_a_configuration_that_cannot_be_used_is_named(cli: Cli, words: list[str], says: str, helps: str) -> None:
    for command in COMMANDS:
        ran = await cli(*command, *words)
        assert ran.status == 1
        assert says in ran.err
        assert helps in ran.err


async def test_no_configuration_says_how_to_get_a_cluster(tmp_path: Path, cli: Cli) -> None:
    ran = await cli("machine", "power-on", "m", KUBECONFIG="", HOME=str(tmp_path))
    assert "no kubeconfig" in ran.err
    assert "unbounded up" in ran.err
    version = await cli("version", KUBECONFIG="", HOME=str(tmp_path))
    assert (version.status, version.out) == (0, "unbounded 0.1.0\n")
    named = await cli("version", "--context", "nowhere")
    assert named.status == 1


async def test_version_tells_the_clusters_too(cli: Cli) -> None:
    ran = await cli("version")
    assert ran.out.splitlines()[1].startswith("kubernetes v1.")
    assert len((await cli("version", "--client")).out.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Conflict("changed"), "another client changed it"),
        (ServerBusy("too many requests", code=429), "nothing was changed; run the command again"),
        (ResponseLost("no answer"), "the change may have had its effect"),
        (ServerError("boom", code=500), "the change may have had its effect"),
        (ServerUnreachable("x: certificate has expired (_ssl.c:1)"), "its certificate has expired"),
        (CliError("no", next_step="do this"), "do this"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_failure_says_what_to_do_next(error: Exception, says: str) -> None:
    found = message_of(error, TOLD)
    assert found is not None
    assert says in found.next_step
    assert str(error) in found.text


def test_a_bug_of_ours_is_not_dressed_up() -> None:
    assert message_of(KeyError("x"), TOLD) is None
    assert message_of(ssl.SSLError("x"), TOLD) is None


async def test_a_reader_that_has_had_enough_ends_it_quietly(cli: Cli, api: HttpApi) -> None:
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "to-be-piped"}, "spec": _NODE_REBOOT})
    command, told, _out, err = cli.told("machine", "operation", "list")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        assert await run_command(command, replace(told, out=closed)) == INTERRUPTED
    assert err.getvalue() == ""


@pytest.mark.slow
async def test_waiting_outlasts_dropped_watches_and_a_server_that_is_away(
    kubeconfig: Path, tmp_path: Path, api: HttpApi
) -> None:
    await api.create(MACHINES, {"metadata": {"name": "far"}, "spec": {}})
    spec = {"machineRef": "far", "operationKind": "NodeReboot"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "far-op"}, "spec": spec})

    async def says(phase: str, message: str) -> None:
        status = {"phase": phase, "message": message}
        await api.patch(MACHINE_OPERATIONS, "far-op", {"status": status}, subresource="status")

    async with proxy(from_kubeconfig(kubeconfig).server) as line:
        cli = Cli(_kubeconfig(kubeconfig, tmp_path, cluster={"server": line.url}))
        running = Running(cli, "machine", "operation", "wait", "far-op", "--timeout", "2m")
        await running.prints("far: Pending")
        line.cut()
        await says("InProgress", "one")
        await running.prints("InProgress · one")
        line.refuse = True
        line.cut()
        await running.prints("waiting for the API server: ")
        await says("InProgress", "two")
        line.calm()
        await running.prints("the API server answers again")
        await running.prints("InProgress · two")
        await says("Complete", "three")
        ran = await running.ended()
    assert (ran.status, ran.err) == (0, "")


@pytest.mark.slow
async def test_a_right_to_watch_that_is_missing_ends_the_wait(api: HttpApi, kubeconfig: Path, tmp_path: Path) -> None:
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "unseen"}, "spec": _NODE_REBOOT})
    roles: Kind[dict[str, Any]] = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", dict)
    rule = {"apiGroups": ["unbounded-cloud.io"], "resources": ["machineoperations"], "verbs": ["get"]}
    await api.create(roles, {"metadata": {"name": "get-only"}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "get-only"}
    await api.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "get-only"}, "roleRef": role, "subjects": [subject]})
    issued = await api.token("default", namespace="kube-system")
    weak = Cli(_kubeconfig(kubeconfig, tmp_path, user={"token": issued.token}))
    async with asyncio.timeout(60):
        ran = await weak("machine", "operation", "wait", "unseen")
    assert ran.status == 1
    assert 'cannot watch resource "machineoperations"' in ran.err or "cannot list resource" in ran.err


_NODE_REBOOT = {"machineRef": "m", "operationKind": "NodeReboot"}


@pytest.mark.parametrize("more", [(), ("--delete",)], ids=["apply", "delete"])
async def test_a_plan_of_a_kind_that_the_server_does_not_serve_names_it(
    cli: Cli, more: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "seed.yaml"
    path.write_text(SEED)
    ran = await cli("plan", "-f", str(path), *more)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "error: the server does not serve Machine (cluster.k8s.io/v1alpha1)",
        "  `kubectl unbounded install --container-cloud` installs the kind; or is this the wrong cluster? "
        "See --context",
    ]
