"""`kubectl unbounded support`: what is in the archive, and canaries in every place where a secret can be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import subprocess
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.cli import ssh_hosts
from tests.cli.controller_pods import controller_pods
from tests.cli.ssh_hosts import Hosts, api, hosts, journald, say
from tests.cli.test_logs import PROVISIONING, keep_console, provision
from tests.support.embedded_server import CRDS
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS
from unbounded.api.container_cloud.names import ANNOTATION_MACHINE_HOST
from unbounded.api.core import CONFIG_MAPS, EVENTS, NODES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli import support_logs
from unbounded.cli.plugin.command import CliInvocation, CommandSession
from unbounded.cli.plugin.output import TextPrinter
from unbounded.cli.support_archive import BoundedArchive, new_archive
from unbounded.cli.support_bundle import SupportBundle
from unbounded.cli.support_logs import MOST_HOSTS
from unbounded.cli.support_redaction import redacted_object
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.secret_text import HIDDEN

__all__ = ["api", "hosts"]
Raw = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
NAME = "canary-machine-01"  # long and mixed enough to look like a secret in user data
PEM = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.Y2FuYXJ5"
BOOTSTRAP = "abcdef.canary0123456789"
CANARIES = {
    place: f"{place}Canary7x9"
    for place in (
        *("bmcPassword", "tokenSecret", "credentialValue", "userData", "profileScript", "moduleFile"),
        *(
            "annotation",
            "lastApplied",
            "managerName",
            "urlPassword",
            "urlQuery",
            "bearer",
            "labelled",
            "nodeAnnotation",
        ),
        *("eventAnnotation", "hostAnnotation", "nested", "variable"),
        *("iscsi", "rootPw", "sharedKey", "luks"),
    )
}
C = CANARIES


def telling(place: str) -> str:
    """Return a message that shows secrets in each form."""
    return (
        f"{place}: GET https://admin:{C['urlPassword']}@bmc.example.com/redfish?sig={C['urlQuery']}#f failed; "
        f"Authorization: Bearer {C['bearer']}; password: {C['labelled']}\ntoken {BOOTSTRAP} of {JWT}\n{PEM}"
    )


def console_of_a_boot() -> str:
    """Return what a host prints as it boots, with canaries on kernel command lines and in all other forms."""
    parameters = (
        *(f"unbounded.token={BOOTSTRAP}", f"rootpw={C['rootPw']}", f"wg.preshared_key={C['sharedKey']}"),
        *(f"netroot=iscsi:joe:{C['iscsi']}@192.0.2.1::3260::iqn.2026-01.com.example:disk", f"rd.luks.pass={C['luks']}"),
        f"ds=nocloud;s=https://joe:{C['urlPassword']}@192.0.2.1/seed?sig={C['urlQuery']}",
        *(f"key='{PEM}'", f'inline="{PEM}"'.replace("\n", " "), f"config={C['userData']}"),
    )
    lines = [f"[    0.000000] Command line: BOOT_IMAGE=/vmlinuz {one} quiet" for one in parameters]
    return "\n".join(("the boot sings", *lines, telling("console"), "Kernel panic - not syncing"))


def every_canary() -> dict[str, str]:
    """Return the texts that may be in no file: each canary, and the body of the key."""
    body = PEM.splitlines()[1]
    return {**CANARIES, "bootstrap": BOOTSTRAP.split(".")[1], "jwt": JWT.split(".")[1], "pem": body}


def leaks(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the files with a canary: as it is, percent-encoded, or in base64."""
    found = []
    for place, canary in every_canary().items():
        encoded = base64.b64encode(canary.encode()).decode().rstrip("=")
        found += [(name, place) for name, text in files.items() if any(one in text for one in (canary, encoded[:-2]))]
    return found


def unpacked(path: Path) -> dict[str, str]:
    """Return the files of an archive by their names, as tar unpacks them."""
    folder = path.with_name(f"{path.name}.d")
    folder.mkdir()
    if path.name.endswith(".zst"):
        plain = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-xf", "-", "-C", str(folder)], input=plain, check=True)
    else:
        subprocess.run(["tar", "-xzf", str(path), "-C", str(folder)], check=True)
    (top,) = folder.iterdir()
    return {str(one.relative_to(top)): one.read_text() for one in top.rglob("*") if one.is_file()}


pytestmark = ssh_hosts.MARKS


async def secret(api: HttpApi, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(one.encode()).decode() for key, one in data.items()}
    await api.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace=NAMESPACE)


async def machine_with_canaries(hosts: Hosts, api: HttpApi) -> Machine:
    """Create a Machine, with a canary wherever its objects and its host can have a secret."""
    await secret(api, "bmc", password=C["bmcPassword"])
    await secret(api, "token", token=C["tokenSecret"])
    data = f"#cloud-config\nhostname: {NAME}\nchpasswd:\n  list: root:{C['userData']}\n"
    await api.create(CONFIG_MAPS, {"metadata": {"name": "data"}, "data": {"user-data": data}}, namespace=NAMESPACE)
    await api.create(MACHINE_PROFILES, PROFILE)
    ref = {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
    spec = {
        "ssh": hosts.target(hosts.host),
        "pxe": {
            "image": "registry.example.com/i:1",
            "redfish": {"url": "https://bmc.example.com", "username": "admin", "passwordRef": ref},
            "cloudInit": {"userDataConfigMapRef": {"name": "data", "namespace": NAMESPACE, "key": "user-data"}},
            "profileRef": {"name": "canary"},
        },
    }
    await host_with_canaries(api)
    of_host = {ANNOTATION_MACHINE_HOST: "default/host"}
    annotations = of_host | {"example.com/note": C["annotation"], LAST_APPLIED: json.dumps({"note": C["lastApplied"]})}
    metadata = {"name": NAME, "annotations": annotations, "labels": {"unbounded-cloud.io/site": "rack1"}}
    machine = await api.create(MACHINES, {"metadata": metadata, "spec": spec}, manager=C["managerName"])
    condition = {
        "type": "PowerStateKnown",
        "status": "False",
        "reason": "BMCFailed",
        "message": telling("condition"),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"provisioning": PROVISIONING, "conditions": [condition], "message": telling("status")}
    return await api.patch(MACHINES, machine.name, {"status": status}, subresource="status")


PROFILE: Raw = {
    "metadata": {"name": "canary"},
    "spec": {
        "devices": [
            {
                "device": {},
                "partitions": [
                    {"name": "efi", "size": "64Mi", "partflags": ["esp"]},
                    {"name": "root", "size": 0},
                ],
            }
        ],
        "fileSystems": [
            {"fileSystem": "vfat", "partition": "efi"},
            {"fileSystem": "ext4", "partition": "root", "mountPoint": "/"},
        ],
        "preDeployScript": f"curl -u joe:{C['profileScript']} https://example.com",
        "kernelParameters": {"modules": [{"filename": "a.conf", "content": f"options x key={C['moduleFile']}"}]},
    },
}


async def host_with_canaries(api: HttpApi) -> None:
    """Create a host of Container Cloud, and the credential of its BMC, with canaries."""
    for kind in (BARE_METAL_HOSTS, BARE_METAL_HOST_CREDENTIALS):
        path = ROOT / "deploy" / "crd" / "container-cloud" / f"{kind.group}_{kind.plural}.yaml"
        await api.create(CRDS, yaml.safe_load(path.read_text()))

        async def is_served(kind: Any = kind) -> bool:
            with contextlib.suppress(NotFound):
                await api.list(kind, namespace="default")
                return True
            return False

        await eventually(is_served)
    metadata = {"name": "host", "annotations": {"example.com/h": C["hostAnnotation"]}}
    spec = {"bmc": {"address": "redfish://bmc.example.com"}, "online": True}
    await api.create(BARE_METAL_HOSTS, {"metadata": metadata, "spec": spec}, namespace="default")
    spec = {"username": "admin", "password": {"value": C["credentialValue"]}}
    await api.create(BARE_METAL_HOST_CREDENTIALS, {"metadata": {"name": "host"}, "spec": spec}, namespace="default")


async def objects_with_canaries(api: HttpApi, machine: Machine) -> None:
    """Create a Node, an operation, Events and a host of Container Cloud, with canaries."""
    node = {"metadata": {"name": machine.name, "annotations": {"example.com/n": C["nodeAnnotation"]}}}
    await api.create(NODES, node)
    operation = await api.create(
        MACHINE_OPERATIONS,
        {"metadata": {"name": "reboot-1"}, "spec": {"machineRef": machine.name, "operationKind": "HostReboot"}},
    )
    await api.patch(
        MACHINE_OPERATIONS, operation.name, {"status": {"message": telling("operation")}}, subresource="status"
    )
    about = {"apiVersion": MACHINES.api_version, "kind": "Machine", "name": machine.name, "uid": machine.metadata.uid}
    event = {
        "metadata": {"name": "canary.1", "annotations": {"example.com/e": C["eventAnnotation"]}},
        "involvedObject": about,
        "reason": "Failed",
        "message": telling("event")[:1000],
        "type": "Warning",
    }
    await api.create(EVENTS, event, namespace="default")


@pytest.fixture(scope="module")
def journal(hosts: Hosts) -> Iterator[None]:
    with journald(hosts.host):
        say(hosts.host, telling("journal"))
        say(hosts.host, f"root has {C['userData']} and {C['profileScript']}")
        yield


@pytest.fixture(scope="module")
def canary(hosts: Hosts, journal: None) -> Machine:
    """A Machine with canaries in its objects and in the logs of its host, for the tests in any order."""

    async def create() -> Machine:
        async with HttpApi(from_kubeconfig(hosts.kubeconfig)) as api:
            machine = await machine_with_canaries(hosts, api)
            await objects_with_canaries(api, machine)
            await keep_console(api, machine, console_of_a_boot())
        script = f"echo installs; echo {C['userData']}; cat <<'END'\n{telling('install')}\nEND\nexit 3"
        await provision(hosts, machine, script, settle_s=30)
        return machine

    return asyncio.run(create())


def logs_with_canaries(*lines: str) -> dict[str, str]:
    """Return logs of controllers with canaries in every form, and with these lines."""
    record = {"level": "info", "message": telling("record"), "password": C["bmcPassword"], "token": C["tokenSecret"]}
    more = "\n".join([*lines, *(json.dumps({"message": line}) for line in lines)])
    return {
        "machina-1/machina": f"{json.dumps(record)}\n{telling('text')}\n{more}\n",
        "machina-1/machina.previous": f"{telling('previous')}\n{json.dumps(record)}\n",
        "machina-1/explain": json.dumps(record | {"data": [record]}) + "\n",
    }


@pytest.fixture
async def controllers(hosts: Hosts) -> AsyncIterator[None]:
    async with controller_pods(hosts.kubeconfig, logs_with_canaries(), variable=C["variable"]):
        yield


async def test_no_canary_of_any_place_is_in_the_archive_of_a_machine(
    hosts: Hosts, canary: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "one.tar.zst"
    logs = logs_with_canaries(f"{NAME} has {C['userData']} and {C['profileScript']}")
    with hosts.own_key():
        async with controller_pods(hosts.kubeconfig, logs, variable=C["variable"]):
            ran = await hosts.run("support", canary.name, "-o", str(path))
    assert ran.status == 0, ran.err
    assert path.stat().st_mode & 0o777 == 0o600
    files = unpacked(path)
    assert leaks(files) == []
    assert leaks({"stdout": ran.out, "stderr": ran.err}) == []
    assert set(files) >= {
        *("README.txt", "versions.json", "tree.json", "events.json", f"explain/{NAME}.json", "logs/install.log"),
        *(
            "logs/agent.log",
            "logs/console.log",
            "objects/machines.unbounded-cloud.io.json",
            "objects/nodes.json",
            "objects/pods.json",
        ),
        *(f"controllers/machina-1/{name}.log" for name in ("machina", "machina.previous", "explain")),
        *(
            "objects/baremetalhosts.metal3.io.json",
            "objects/machineoperations.unbounded-cloud.io.json",
            "objects/machineprofiles.unbounded-cloud.io.json",
        ),
    }
    (shown,) = json.loads(files["objects/machines.unbounded-cloud.io.json"])["items"]
    assert shown["metadata"]["name"] == NAME
    assert shown["spec"]["pxe"]["redfish"]["passwordRef"] == {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
    assert shown["status"]["message"].startswith(
        f"status: GET https://{HIDDEN}@bmc.example.com/redfish?{HIDDEN} failed"
    )
    assert shown["metadata"]["annotations"]["example.com/note"] == f"[left out: {len(C['annotation'])} characters]"
    assert "managedFields" not in shown["metadata"]
    for log in ("install", "agent", "console"):
        assert HIDDEN in files[f"logs/{log}.log"]
    console = files["logs/console.log"].splitlines()
    assert console[0].startswith(f"# Secret {NAMESPACE}/console-{NAME}: until reboot-1 failed")
    assert (console[1], console[-1]) == ("the boot sings", "Kernel panic - not syncing")
    assert f"[    0.000000] Command line: BOOT_IMAGE=/vmlinuz unbounded.token={HIDDEN} quiet" in console
    assert "installs\n" in files["logs/install.log"]
    assert "journal: GET https://" in files["logs/agent.log"]
    first, *text = files["controllers/machina-1/machina.log"].splitlines()
    assert json.loads(first)["message"].startswith(f"record: GET https://{HIDDEN}@bmc.example.com/")
    assert text[0].startswith(f"text: GET https://{HIDDEN}@bmc.example.com/")
    assert f"{NAME} has {HIDDEN} and {HIDDEN}" in text
    assert "previous: GET https://" in files["controllers/machina-1/machina.previous.log"]
    (event,) = [one for one in json.loads(files["events.json"])["items"] if one["reason"] == "Failed"]
    assert event["message"].startswith("event: GET https://")
    assert json.loads(files["versions.json"])["kubernetes"].startswith("v1.")
    assert "Secrets; of their type for the kept output of consoles, that is among the logs" in files["README.txt"]


async def test_the_archive_of_all_has_the_objects_and_logs_that_the_user_may_read(
    hosts: Hosts, api: HttpApi, canary: Machine, controllers: None, tmp_path: Path
) -> None:
    """The reader may read the project's kinds; the administrator gets the rest, and nobody gets a canary."""
    partly, whole = tmp_path / "partly.tar.gz", tmp_path / "whole.tgz"
    other = await hosts.machine(api, None, phase="Ready")
    with hosts.own_key():
        ran = await hosts.run("support", "--all", "-o", str(whole))
    assert ran.status == 0, ran.err
    files = unpacked(whole)
    assert leaks(files) == []
    assert f"explain/{other.name}.json" in files
    assert "installs\n" in files[f"logs/{NAME}/install.log"]
    assert "journal: GET https://" in files[f"logs/{NAME}/agent.log"]
    assert "the boot sings\n" in files[f"logs/{NAME}/console.log"]
    assert not [name for name in files if name.startswith(f"logs/{other.name}/")]
    assert "logs" not in files["README.txt"].partition("Left out this time:")[2]
    machines = json.loads(files["objects/machines.unbounded-cloud.io.json"])["items"]
    names = {one["metadata"]["name"] for one in machines}
    assert NAME in names
    assert f"explain/{NAME}.json" in files
    assert "record: GET https://" in files["controllers/machina-1/machina.log"]
    assert "LICENSE" in files["objects/pods.json"]
    ran = await hosts.run("support", "--all", "--as", ssh_hosts.READER, "-o", str(partly))
    assert ran.status == 0, ran.err
    less = unpacked(partly)
    assert leaks(less) == []
    assert {
        one["metadata"]["name"] for one in json.loads(less["objects/machines.unbounded-cloud.io.json"])["items"]
    } == names
    assert "objects/nodes.json" not in less
    for left_out in (
        *("nodes: ", "events: ", "leases.coordination.k8s.io of namespace unbounded-kube: "),
        "Pods and logs of the controllers: ",
    ):
        assert f"note: left out: {left_out}" in ran.err
        assert f"\n- {left_out}" in less["README.txt"]


async def test_the_logs_of_controllers_need_the_right_to_read_them(
    hosts: Hosts, canary: Machine, controllers: None, tmp_path: Path
) -> None:
    ran = await hosts.run("support", "--all", "--as", ssh_hosts.LISTER, "-o", str(tmp_path / "a.tgz"))
    assert ran.status == 0, ran.err
    files = unpacked(tmp_path / "a.tgz")
    assert leaks(files) == []
    assert "objects/pods.json" in files
    assert not [name for name in files if name.startswith("controllers/")]
    assert ran.err.count("note: left out: logs of the controllers: ") == 1
    assert 'cannot get resource "pods/log"' in files["README.txt"]


async def test_a_user_without_the_right_to_secrets_gets_the_same_archive(
    hosts: Hosts, canary: Machine, controllers: None, tmp_path: Path
) -> None:
    """The command has tried to read no Secret but that of the console."""
    with hosts.own_key():
        ran = await hosts.run("support", NAME, "--as", ssh_hosts.HELPER, "-o", str(tmp_path / "tried.tgz"))
        assert ran.status == 0
        (line,) = ran.err.splitlines()
        assert line.startswith("note: left out: the console log: ")
        assert 'cannot get resource "secrets"' in line
        words = ("support", NAME, "--console=false")
        ran = await hosts.run(*words, "--as", ssh_hosts.HELPER, "-o", str(tmp_path / "helper.tgz"))
        whole = await hosts.run(*words, "-o", str(tmp_path / "admin.tgz"))
    left_out = "note: left out: the console of the last failed boot: --console=false was given\n"
    assert (ran.status, ran.err, whole.err) == (0, left_out, left_out)
    helper, admin = unpacked(tmp_path / "helper.tgz"), unpacked(tmp_path / "admin.tgz")
    assert helper.keys() == admin.keys()
    same = {name for name in helper if helper[name] == admin[name]}
    assert same >= {name for name in helper if name.startswith(("objects/", "logs/", "controllers/", "events"))}
    assert left_out.removeprefix("note: left out: ") in helper["README.txt"].partition("Left out this time:\n- ")[2]


async def test_the_logs_are_left_out_where_their_secrets_cannot_be_known(
    hosts: Hosts, canary: Machine, tmp_path: Path
) -> None:
    with hosts.own_key():
        ran = await hosts.run("support", NAME, "--as", ssh_hosts.READER, "-o", str(tmp_path / "a.tgz"))
    assert ran.status == 0, ran.err
    files = unpacked(tmp_path / "a.tgz")
    assert leaks(files) == []
    assert not [name for name in files if name.startswith("logs/")]
    for left_out in (
        f"logs of Machines whose user data and profile may be in them, and cannot be read\n  - {NAME}: ",
        "events of namespace default: ",
        "leases.coordination.k8s.io of namespace unbounded-kube: ",
    ):
        assert f"\n- {left_out}" in files["README.txt"], files["README.txt"]
    assert "objects/machineoperations.unbounded-cloud.io.json" in files


async def test_a_machine_without_a_host_and_a_user_without_rights(hosts: Hosts, api: HttpApi, tmp_path: Path) -> None:
    machine = await hosts.machine(api, None)
    ran = await hosts.run("support", machine.name, "-o", str(tmp_path / "a.tar.gz"))
    assert ran.status == 0, ran.err
    files = unpacked(tmp_path / "a.tar.gz")
    assert "the install log: Machine" in files["README.txt"]
    assert "has no spec.ssh" in files["README.txt"]
    assert json.loads(files["objects/machines.unbounded-cloud.io.json"])["items"][0]["metadata"]["name"] == machine.name
    again = await hosts.run("support", machine.name, "-o", str(tmp_path / "a.tar.gz"))
    assert (again.status, "File exists" in again.err) == (1, True)
    ran = await hosts.run("support", machine.name, "--as", "nobody", "-o", str(tmp_path / "b.tar.gz"))
    assert (ran.status, "no permission" in ran.err) == (1, True)
    assert not (tmp_path / "b.tar.gz").exists()


async def test_no_other_secret_is_taken_for_the_output_of_a_console(hosts: Hosts, api: HttpApi, tmp_path: Path) -> None:
    """A writer of the status names the Secret of a BMC, which the user may read."""
    canary = "otherCanary7x9"
    await secret(api, "of-another-bmc", password=canary)
    kept = {"secret": "of-another-bmc", "operation": "reboot-1", "at": "2026-02-02T00:00:00Z"}
    machine = await hosts.machine(api, None, consoleOutput=kept)
    ran = await hosts.run("support", machine.name, "-o", str(tmp_path / "a.tgz"))
    files = unpacked(tmp_path / "a.tgz")
    assert "Secret unbounded-kube/of-another-bmc has no console output: it is of type Opaque" in files["README.txt"]
    assert canary not in "".join((*files.values(), ran.out, ran.err))


async def test_the_logs_of_many_hosts_are_bounded_and_the_index_names_the_others(
    hosts: Hosts, api: HttpApi, tmp_path: Path
) -> None:
    nowhere = hosts.target(hosts.host, host="127.0.0.1:1")
    made = [await hosts.machine(api, nowhere, phase="Ready") for _ in range(MOST_HOSTS + 1)]
    failed = await hosts.machine(api, hosts.target(hosts.host), phase="Failed", provisioning=PROVISIONING)
    await provision(hosts, failed, "echo is first; exit 3", settle_s=30)
    try:
        with hosts.own_key():
            ran = await hosts.run("support", "--all", "-o", str(tmp_path / "a.tgz"))
    finally:
        for machine in (*made, failed):
            await api.delete(MACHINES, machine.name)
    files = unpacked(tmp_path / "a.tgz")
    assert "is first\n" in files[f"logs/{failed.name}/install.log"]
    index = files["README.txt"].partition("Left out this time:")[2]
    found = re.search(r"\n- logs of ([0-9]+) of ([0-9]+) Machines\n((?:  - \S+\n)+)", index)
    assert found is not None, index
    names = found[3].split()[1::2]
    assert int(found[1]) == len(names) == int(found[2]) - MOST_HOSTS
    assert set(names) < {one.name for one in made}
    assert f"note: left out: logs of {len(names)} of {found[2]} Machines: {names[0]}" in ran.err
    for name in {one.name for one in made} - set(names):
        assert f"\n  - agent of {name}: ssh: " in index


async def test_logs_that_are_too_large_or_too_slow_are_named(
    hosts: Hosts, api: HttpApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(support_logs, "HOST_BYTES", 38)
    monkeypatch.setattr(support_logs, "ALL_BYTES", 60)
    monkeypatch.setattr(support_logs, "HOSTS_AT_ONCE", 1)
    machines = sorted([await hosts.machine(api, None) for _ in range(2)], key=lambda one: one.name)
    first, second = (one.name for one in machines)
    await keep_console(api, machines[0], "older\nfirst\nnewest line of the first one")
    await keep_console(api, machines[1], "second\n" + "x" * 30)
    listed = [await api.get(MACHINES.raw(), name) for name in (first, second)]
    args = Namespace(all=True, host_logs=True, console=True)
    out, err = io.StringIO(), io.StringIO()
    told = CliInvocation(args, {}, out, err, io.StringIO(), colour=False, terminal=False)
    session = CommandSession(told, api, TextPrinter(out, err))

    async def read(name: str) -> tuple[dict[str, str], list[str]]:
        with new_archive(tmp_path / name) as tar:
            bundle = SupportBundle(session, BoundedArchive(tar, "top", 0.0))
            await support_logs.add_logs_of_all(bundle, listed)
        return unpacked(tmp_path / name) if bundle.archive.files else {}, bundle.notes()

    files, left_out = await read("large.tgz")
    assert [*files] == [f"logs/{first}/console.log"]
    assert files[f"logs/{first}/console.log"].endswith("Z\nfirst\nnewest line of the first one\n")
    assert left_out == [
        f"older lines of logs of more than 0 KiB: {first}/console",
        f"logs of hosts after the first 0 MiB: {second}/console",
    ]
    monkeypatch.setattr(support_logs, "HOST_S", 0.0)
    files, left_out = await read("slow.tgz")
    assert (files, left_out) == ({}, [f"logs of Machines that took more than 0 s: {first}, {second}"])
    monkeypatch.setattr(support_logs, "ALL_S", 0.0)
    files, left_out = await read("late.tgz")
    assert (files, left_out) == ({}, [f"logs of Machines that were not read within 0 s: {first}, {second}"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a Machine, or give --all"),
        (("m", "--all"), "name a Machine, or give --all"),
        (("--all", "-n", "stock"), "-n stock: --all collects all namespaces"),
        (("m", "-o", "x.zip"), "-o x.zip: it has to end in .tar.zst, .tar.gz, .tgz"),
        (("none", "-o", "x.tgz"), "Machine none does not exist"),
        (("--all", "-o", "/nowhere/x.tgz"), "-o /nowhere/x.tgz: No such file or directory"),
    ],
)
async def test_arguments_that_cannot_be_meant(hosts: Hosts, words: tuple[str, ...], says: str) -> None:
    ran = await hosts.run("support", *words)
    assert ran.status in (1, 2)
    assert says in ran.err


def test_an_archive_has_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with new_archive(path) as tar:
        archive = BoundedArchive(tar, "top", 0.0, most=10)
        assert [archive.add("a", "12345"), archive.add("b", "123456"), archive.add("c", "12345")] == [True, False, True]
    assert unpacked(path) == {"a": "12345", "c": "12345"}


def test_an_archive_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.zst"
    with pytest.raises(AttributeError), new_archive(path) as tar:
        BoundedArchive(tar, "top", 0.0).add("a", None)  # type: ignore[arg-type]
    assert not path.exists()


PLACES = st.sampled_from(
    [
        *("password", "bmcPassword", "passwd", "auth_pass", "apiToken", "clientSecret", "apiKey", "access-key"),
        *("private_key", "credentials", "Authorization", "Set-Cookie"),
        *("userData", "preDeployScript", "cloud_config", "kubeconfig", "env", "managedFields"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(PLACES, st.sampled_from(["text", "list", "value", "items"]), JSON)
def test_a_text_under_the_name_of_a_secret_is_removed_at_any_depth(place: str, form: str, around: Any) -> None:
    canary = C["nested"]
    inner: Any = {
        "text": canary,
        "list": [canary],
        "value": {"value": canary, "name": {"inner": canary}},
        "items": [{"value": canary}],
    }[form]
    if place == "env" and form in {"text", "list"}:  # no environment
        inner = {"A": canary}
    shown = json.dumps(redacted_object({"a": [{"b": {place: inner}}, around]}))
    assert canary not in shown


@pytest.mark.parametrize(
    "item",
    [
        {"password": 40917533},
        {"pin": {"passcode": 40917533.0}},
        {"httpHeaders": [{"name": "Authorization", "value": "40917533"}]},
        {"parameters": [{"key": "db_password", "value": "40917533"}]},
        {"args": ["--user", "joe", "--password", "40917533"]},
        {"command": ["run", "--api-key", "40917533", "--verbose"]},
        {"env": {"DATABASE": "40917533"}},
        {"env": ["DATABASE=40917533"]},
        {"message": r'request {"user":"joe","password":"40917533"} failed'},
        {"message": r'body="{\"user\":\"joe\",\"token\":\"40917533\"}"'},
        {"message": r"{\\\"apiKey\\\": \\\"4 40917533\\\"}"},
    ],
    ids=lambda item: next(iter(item)),
)
def test_a_secret_is_removed_in_any_form(item: Raw) -> None:
    shown = json.dumps(redacted_object({"spec": [item]}))
    assert "40917533" not in shown
    assert HIDDEN in shown or "left out" in shown


def test_what_is_no_secret_stays() -> None:
    item = {
        "automountServiceAccountToken": False,
        "passwordRef": {"name": "bmc", "namespace": "unbounded-kube", "key": "password"},
        "networkData": {"name": "rack1", "namespace": "default"},
        "metadata": {"name": "m", "labels": {"rack": "1"}},
        "taints": [{"key": "pool", "value": "web"}],
        "args": ["--site", "rack1", "--leader-elect"],
        "goodCredentials": {"credentials": {"name": "bmc", "namespace": "default"}, "credentialsVersion": "7"},
    }
    assert redacted_object(item) == item


@given(st.lists(st.sampled_from([*CANARIES.values()]), min_size=1, max_size=5), st.text(max_size=30))
def test_known_secrets_are_removed_in_their_encodings(secrets: list[str], around: str) -> None:
    text = around + "".join(quote(one, safe="") + base64.b64encode(one.encode()).decode() for one in secrets)
    shown = redacted_object({"message": text}, secrets)["message"]
    assert [one for one in secrets if one in shown or base64.b64encode(one.encode()).decode()[:-4] in shown] == []
