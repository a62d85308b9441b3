"""`machine operation list`: the rows of kubectl, in pages, with filters of its own."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.cli.plugin.conftest import Cli, Running, says
from unbounded.api.machine import Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi


@pytest.mark.slow
async def test_list_shows_what_kubectl_shows_and_filters(cli: Cli, api: HttpApi, machine: Machine) -> None:
    names = [f"{machine.name}-list-{number}" for number in range(3)]
    for name, kind in zip(names, ("HostReboot", "HostPowerOn", "HostPowerOn"), strict=True):
        spec = {"machineRef": machine.name, "operationKind": kind}
        await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name, "labels": {"number": name[-1]}}, "spec": spec})
    await says(api, names[1], phase="Failed", reason="Foo", message="bar")

    async def listed(*words: str) -> list[str]:
        ran = await cli("machine", "operation", "list", "--machine", machine.name, *words)
        assert ran.status == 0, ran.err
        return ran.out.splitlines()

    heads, *rows = await listed()
    assert heads.split() == ["NAME", "KIND", "MACHINE", "PHASE", "AGE"]
    assert [row.split()[:4] for row in rows][1] == [names[1], "HostPowerOn", machine.name, "Failed"]
    assert [row.split()[0] for row in rows] == names
    assert [row.split()[0] for row in (await listed("--phase", "Pending"))[1:]] == [names[0], names[2]]
    assert [row.split()[0] for row in (await listed("--phase", "Failed"))[1:]] == [names[1]]
    assert await listed("--kind", "HostReboot", "-o", "name") == [f"machineoperation.unbounded-cloud.io/{names[0]}"]
    assert [row.split()[0] for row in (await listed("-l", "number in (0,2)"))[1:]] == [names[0], names[2]]
    assert "Foo" in (await listed("-o", "wide"))[2]
    as_json = json.loads("\n".join(await listed("-o", "json", "--phase", "Pending")))
    assert [item["metadata"]["name"] for item in as_json["items"]] == [names[0], names[2]]
    as_yaml = yaml.safe_load("\n".join(await listed("-o", "yaml")))
    assert [item["kind"] for item in as_yaml["items"]] == ["MachineOperation"] * 3


async def test_a_list_of_many_comes_in_pages_and_whole(
    cli: Cli, api: HttpApi, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unbounded.cli.plugin import reader

    monkeypatch.setattr(reader, "PAGE", 2)
    names = [f"{machine.name}-page-{number}" for number in range(5)]
    for name in names:
        spec = {"machineRef": machine.name, "operationKind": "HostReboot"}
        await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
    ran = await cli("machine", "operation", "list", "--machine", machine.name)
    assert [row.split()[0] for row in ran.out.splitlines()[1:]] == names


async def test_nothing_found_is_no_failure(cli: Cli) -> None:
    ran = await cli("machine", "operation", "list", "--machine", "nobody")
    assert (ran.status, ran.out, ran.err) == (0, "", "No resources found\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--phase", "complete"], "did you mean Complete?"),
        (["--kind", "Reboot"], "--kind: unknown kind 'Reboot'"),
        (["-w", "-o", "json"], "a watch supports only columns"),
    ],
    ids=["phase", "kind", "watch"],
)
async def test_list_refuses(cli: Cli, words: list[str], says: str) -> None:
    ran = await cli("machine", "operation", "list", *words)
    assert (ran.status, says in ran.err) == (2, True), ran


async def test_a_watched_list_goes_on_with_what_changes(cli: Cli, api: HttpApi, machine: Machine) -> None:
    spec = {"machineRef": machine.name, "operationKind": "HostReboot"}
    first, later = f"{machine.name}-first", f"{machine.name}-later"
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": first}, "spec": spec})
    listing = Running(cli, "machine", "operation", "list", "-w", "--machine", machine.name)
    await listing.prints(first)
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": later}, "spec": spec})
    await listing.prints(later)
    await api.delete(MACHINE_OPERATIONS, later)
    await listing.prints("(deleted)")
    assert listing.task.cancel()
    heads, *rows = listing.out.getvalue().splitlines()
    assert heads.split() == ["NAME", "KIND", "MACHINE", "PHASE", "AGE"]
    assert [row.split()[0] for row in rows] == [first, later, later]
