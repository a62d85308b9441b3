"""`machine register`, `manual-bootstrap`, `allow-join`, `config …`, against a server as `unbounded up` prepares it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from tests.cli.plugin.conftest import Cli
from tests.cli.test_terminal import terminal
from tests.join.signing import PUBLIC_KEY
from tests.support.authority import PEM
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_BOUND, CONFIGMAP_RELEASES, LABEL_CONFIGURATION, NAMESPACE, PCRPolicy
from unbounded.cli.deploy.configurations import CONFIGURATIONS, VERSIONS
from unbounded.cli.deploy.site_tokens import token_of, tokens_for
from unbounded.cli.plugin import intents
from unbounded.cli.plugin.intents import TRIES
from unbounded.cli.pxe import deploy_flags
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.machina.controller import publish_once
from unbounded.metalman.flags import add_arguments, parse_settings
from unbounded.metalman.settings import DhcpMode, MediaSettings, NetbootSettings

Raw = dict[str, Any]

pytestmark = pytest.mark.slow

NUMBERS = count(1)
AGENT = ("--agent-url", "https://example.com/agent.tar.gz")
HOST_KEY = f"ssh-ed25519 {'A' * 68}"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "id"
    made = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path


@pytest.fixture
async def site(up_api: HttpApi) -> str:
    """A site of the test alone, with a token."""
    name = f"site{next(NUMBERS)}"
    await tokens_for(up_api, name, timedelta(hours=1))
    return name


def register(site: str, *more: str, host: str = "192.0.2.10") -> list[str]:
    agent = () if "--agent-base-url" in more or "--agent-url" in more else AGENT
    return ["machine", "register", "--site", site, "--host", host, "--ssh-username", "admin", *agent, *more]


async def test_a_host_becomes_a_machine_with_all_that_was_said_of_it(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path
) -> None:
    said = [
        *("--name", "Web 7", "--ssh-private-key", str(key), "--host-key", f"192.0.2.10 {HOST_KEY}"),
        *("--node-label", "pool=web", "--node-label", "a=b", "--register-with-taint", "k=v:NoSchedule"),
        *(
            "--agent-version",
            "v1.2.3",
            "--agent-base-url",
            "https://mirror.example.com/releases",
            "--oci-image",
            "registry.example.com/node:v1",
            "--containerd-version",
            "2.1.8",
        ),
        *("--reset-on-delete", "--kubernetes-version", "v1.33.1"),
    ]
    name, at_home = f"{site}-web-7", "which works only on the API server's own host"
    planned = await up_cli("plan", *register(site, *said, host="192.0.2.10:2222"))
    first, digest, last = planned.out.splitlines()
    assert (first, last) == (f"would create machine.unbounded-cloud.io/{name}", "nothing was changed")
    assert digest.startswith("plan hash: ")
    assert planned.err.splitlines()[-1] == f"Secret unbounded-kube/ssh-{site} would be created from the key"
    ran = await up_cli(*register(site, *said, host="192.0.2.10:2222"))
    assert (ran.status, len(ran.err.splitlines())) == (0, 1)
    assert f"the host gets {up_api.config.server} as the API server's address, {at_home}" in ran.err
    assert "set another one with `unbounded up --bind 0.0.0.0 --advertise-address ADDRESS`" in ran.err
    assert ran.out.splitlines() == [f"secret/ssh-{site} created", f"machine.unbounded-cloud.io/{name} created"]
    machine: Raw = await up_api.get(MACHINES.raw(), name)
    found = await token_of(up_api, site)
    assert found is not None
    assert machine["metadata"]["labels"] == {"unbounded-cloud.io/site": site}
    assert machine["spec"] == {
        "ssh": {
            "host": "192.0.2.10:2222",
            "username": "admin",
            "privateKeyRef": {"name": f"ssh-{site}", "namespace": "unbounded-kube", "key": "ssh-privatekey"},
            "hostKeys": [HOST_KEY],
        },
        "kubernetes": {
            "version": "v1.33.1",
            "nodeLabels": {"pool": "web", "a": "b"},
            "registerWithTaints": ["k=v:NoSchedule"],
            "bootstrapTokenRef": {"name": found.secret},
        },
        "agent": {
            "image": "registry.example.com/node:v1",
            "version": "v1.2.3",
            "baseURL": "https://mirror.example.com/releases",
            "downloads": {"containerd": {"version": "2.1.8"}},
        },
        "resetOnDelete": True,
    }
    secret = await up_api.get(SECRETS, f"ssh-{site}", namespace="unbounded-kube")
    assert secret.value("ssh-privatekey") == key.read_bytes()  # noqa: ASYNC240  # a small file
    again = await up_cli(*register(site, *said, host="192.0.2.10:2222"))
    assert [line.split()[1] for line in again.out.splitlines()] == ["unchanged", "unchanged"]
    planned = await up_cli("plan", *register(site, *said, host="192.0.2.10:2222"))
    assert (planned.status, planned.out) == (0, "nothing was changed\n")
    assert planned.err.splitlines()[-2:] == [
        f"Secret unbounded-kube/ssh-{site} has the key already",
        f"Machine {name} exists as described: it would not change",
    ]
    new = ("--ssh-private-key", str(key), "--ssh-secret-name", "new")
    differs = register(site, "--name", "Web 7", *new, *said[14:16], host="h")
    other, planned = await up_cli(*differs), await up_cli("plan", *differs)
    assert (other.status, planned.status, other.out) == (1, 1, "")
    assert f"Machine {name} exists, and differs: spec.kubernetes.version, spec.ssh.host" in other.err
    assert planned.err == other.err
    with pytest.raises(NotFound):  # nothing is made for a Machine that is refused
        await up_api.get(SECRETS, "new", namespace="unbounded-kube")
    here = await up_cli("plan", *register(site, host="127.0.0.1:2222"))
    assert (here.status, at_home in here.err) == (0, False), here.err


async def test_registered_bastion_uses_the_key_of_the_host_or_its_own(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path
) -> None:
    bastion = ("--bastion-host", "bastion.example.com", "--bastion-host-key", HOST_KEY)
    ran = await up_cli(*register(site, "--ssh-private-key", str(key), *bastion))
    assert ran.status == 0, ran.err
    assert "the image of the node's root file system is not configured: set spec.agent.image of the Machine" in ran.err
    spec = (await up_api.get(MACHINES, f"{site}-192.0.2.10")).spec
    assert spec.ssh is not None
    assert spec.ssh.bastion is not None
    assert spec.ssh.bastion.private_key_ref == spec.ssh.private_key_ref
    assert (spec.ssh.bastion.username, spec.ssh.bastion.host_keys) == ("admin", (HOST_KEY,))
    ran = await up_cli(
        *register(site, *bastion, "--bastion-ssh-private-key", str(key), "--bastion-ssh-username", "jump", host="h2")
    )
    assert ran.out.splitlines()[0] == f"secret/ssh-{site}-bastion created"
    spec = (await up_api.get(MACHINES, f"{site}-h2")).spec
    assert spec.ssh is not None
    assert spec.ssh.bastion is not None
    assert spec.ssh.bastion.private_key_ref is not None
    assert (spec.ssh.bastion.private_key_ref.name, spec.ssh.bastion.username) == (f"ssh-{site}-bastion", "jump")


async def test_a_secret_with_another_key_is_replaced_only_by_force(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path, tmp_path: Path
) -> None:
    await up_cli(*register(site, "--ssh-private-key", str(key)))
    await up_api.patch(SECRETS, f"ssh-{site}", {"data": {"passphrase": "eA=="}}, namespace="unbounded-kube")
    other = tmp_path / "other"
    made = ed25519.Ed25519PrivateKey.generate()
    other.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    ran = await up_cli(*register(site, "--ssh-private-key", str(other), host="h2"))
    assert (ran.status, f"Secret unbounded-kube/ssh-{site} has another key" in ran.err) == (1, True)
    planned = await up_cli("plan", *register(site, "--ssh-private-key", str(other), host="h2"))
    assert (planned.status, planned.err) == (1, ran.err)
    with pytest.raises(NotFound):
        await up_api.get(MACHINES, f"{site}-h2")
    dry = await up_cli(*register(site, "--ssh-private-key", str(other), "--force", "--dry-run", "server", host="h2"))
    assert "configured (server dry run)" in dry.out
    planned = await up_cli("plan", *register(site, "--ssh-private-key", str(other), "--force", host="h2"))
    assert f"Secret unbounded-kube/ssh-{site} would get this key in place of its present one" in planned.err
    secret = await up_api.get(SECRETS, f"ssh-{site}", namespace="unbounded-kube")
    assert secret.value("ssh-privatekey") == key.read_bytes()  # noqa: ASYNC240  # a small file
    ran = await up_cli(*register(site, "--ssh-private-key", str(other), "--force", host="h2"))
    assert ran.out.splitlines()[0] == f"secret/ssh-{site} configured"
    secret = await up_api.get(SECRETS, f"ssh-{site}", namespace="unbounded-kube")
    assert secret.data.keys() == {"ssh-privatekey"}  # the passphrase was the other key's
    assert secret.value("ssh-privatekey") == other.read_bytes()


async def test_client_dry_run_prints_the_objects_without_the_key(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path
) -> None:
    dry = register(site, "--ssh-private-key", str(key), "--dry-run", "client")
    ran = await up_cli(*dry)
    assert ran.out.splitlines()[0] == f"secret/ssh-{site} created (dry run)"
    ran = await up_cli(*dry, "-o", "yaml")
    body = yaml.safe_load(ran.out)
    left_out, command = ran.err.splitlines()
    assert left_out == f"Secret unbounded-kube/ssh-{site} is omitted, as it contains a key. Create it with:"
    make = f"kubectl create secret generic ssh-{site} --namespace unbounded-kube"
    assert command == f"  {make} --from-file=ssh-privatekey={key}"
    assert body["spec"]["kubernetes"]["version"] == "v1.32.0"  # the cluster's, without what its maker appends
    with pytest.raises(NotFound):
        await up_api.get(MACHINES, body["metadata"]["name"])


async def test_a_passphrase_is_asked_for_on_a_terminal_and_not_shown(
    beside: Path, up_api: HttpApi, site: str, tmp_path: Path
) -> None:
    path = tmp_path / "locked"
    made = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")))
    plugin = [sys.executable, "-m", "unbounded.cli.plugin.main", "--kubeconfig", str(beside)]
    command = [*plugin, *register(site, "--ssh-private-key", str(path), host="192.0.2.11")]
    async with terminal(*command) as screen:
        await screen.shows(r"Passphrase of \S+locked: ")
        screen.type("wrong\n")
        await screen.shows(r"Passphrase of \S+locked: [\s\S]*Passphrase of \S+locked: ")
        screen.type("open sesame\n")
        await screen.shows(rf"{site}-192\.0\.2\.11 created")
        assert "sesame" not in screen.written
        assert await screen.process.wait() == 0
    secret = await up_api.get(SECRETS, f"ssh-{site}", namespace="unbounded-kube")
    assert secret.value("passphrase") == b"open sesame"
    async with terminal(*command) as screen:
        await screen.shows("Passphrase of ")
        screen.type("\x03")
        assert await screen.process.wait() == 130


REFUSED = [
    (
        (),
        2,
        "Secret unbounded-kube/ssh-SITE with an SSH key does not exist",
        "give the key with --ssh-private-key FILE",
    ),
    (("--ssh-private-key", "/nonexistent"), 2, "--ssh-private-key: /nonexistent: No such file", ""),
    (("--bastion-host-key", HOST_KEY), 2, "--bastion-host-key needs --bastion-host HOST", ""),
    (("--host-key", "x"), 2, "--host-key: 'x' is not a host key", ""),
    (("--node-label", "x"), 2, "--node-label: 'x' is not a label: write KEY=VALUE", ""),
    (("--name", "x" * 63), 2, "--name: ", "choose another with --name"),
    (("--agent-url", "x"), 2, "--agent-url: 'x' is not a URL", ""),
    (("--agent-sha256", "x"), 2, "--agent-sha256: 'x' is not a SHA-256 digest: write its 64 hexadecimal digits", ""),
    (("--kubernetes-version", "new"), 2, "--kubernetes-version: 'new' is not a version", ""),
]


@pytest.mark.parametrize(("more", "status", "words", "following"), REFUSED, ids=range(len(REFUSED)))
async def test_what_cannot_be_meant_is_refused_before_anything_is_made(
    more: tuple[str, ...], status: int, words: str, following: str, up_cli: Cli, up_api: HttpApi, site: str
) -> None:
    for plan in ((), ("plan",)):
        ran = await up_cli(*plan, *register(site, *more, host="h9"))
        assert (ran.status, ran.out) == (status, "")
        assert words.replace("SITE", site) in ran.err
        assert following in ran.err
    with pytest.raises(NotFound):
        await up_api.get(MACHINES, f"{site}-h9")


async def test_site_without_a_token_gets_the_init_command(up_cli: Cli, key: Path) -> None:
    for command in (
        register("tokenless", "--ssh-private-key", str(key)),
        ["machine", "manual-bootstrap", "m", "--site", "tokenless"],
    ):
        ran = await up_cli(*command)
        assert ran.status == 1
        assert "site tokenless has no valid bootstrap token" in ran.err
        assert "`kubectl unbounded site init --name tokenless`" in ran.err


@pytest.mark.parametrize(
    ("more", "words", "flag"),
    [
        (
            (),
            "no release of the agent is configured: set spec.agent.url of the Machine",
            "set it with --agent-url URL for this host",
        ),
        (
            ("--agent-base-url", "http://example.com"),
            "the agent's URL uses plain http, and no digest is configured",
            "set it with --agent-sha256 DIGEST for this host\n",
        ),
    ],
    ids=["no release", "plain http"],
)
async def test_a_host_without_a_release_that_it_may_run_is_refused(
    more: tuple[str, ...], words: str, flag: str, up_cli: Cli, up_api: HttpApi, site: str
) -> None:
    where = ("--site", site, *more)
    for command in (
        ("machine", "register", *where, "--host", "h", "--ssh-username", "u"),
        ("plan", "machine", "register", *where, "--host", "h", "--ssh-username", "u"),
        ("machine", "manual-bootstrap", "web9", *where),
    ):
        ran = await up_cli(*command)
        assert (ran.status, ran.out) == (1, "")
        assert words in ran.err
        assert flag in ran.err
    with pytest.raises(NotFound):
        await up_api.get(MACHINES, f"{site}-h")
    ran = await up_cli("machine", "manual-bootstrap", "web9", *where, *more, *AGENT, "--agent-sha256", "A" * 64)
    assert f"export AGENT_SHA256={'a' * 64}" in ran.out


async def test_a_second_machine_of_one_host_is_refused(up_cli: Cli, up_api: HttpApi, site: str, key: Path) -> None:
    await up_cli(*register(site, "--name", "first", "--ssh-private-key", str(key), host="198.51.100.7"))
    for words in (["plan"], []):
        ran = await up_cli(*words, *register(site, "--name", "second", host="198.51.100.7:22"))
        assert (ran.status, ran.out) == (1, "")
        assert f"--host: Machine {site}-first has this host already: its spec.ssh.host is 198.51.100.7" in ran.err
    assert [one.name for one in (await up_api.list(MACHINES)).items if one.site == site] == [f"{site}-first"]
    again = await up_cli(*register(site, "--name", "first", host="198.51.100.7"))
    assert (again.status, again.out) == (0, f"machine.unbounded-cloud.io/{site}-first unchanged\n")


async def test_a_second_name_of_one_host_is_refused(up_cli: Cli, site: str, key: Path) -> None:
    """Seen: a host under its name and its address was registered twice."""
    await up_cli(*register(site, "--name", "first", "--ssh-private-key", str(key), host="localhost:2207"))
    ran = await up_cli(*register(site, "--name", "second", host="127.0.0.1:2207"))
    assert (ran.status, ran.out) == (1, "")
    assert f"Machine {site}-first has this host already: its spec.ssh.host is localhost:2207" in ran.err
    assert "which has the same address: 127.0.0.1" in ran.err


async def test_waiting_ends_with_ready_or_with_failed(up_cli: Cli, up_api: HttpApi, site: str, key: Path) -> None:
    async def becomes(name: str, *phases: str) -> None:
        async with asyncio.timeout(60):
            for phase in phases:
                while True:
                    try:
                        await up_api.patch(MACHINES, name, {"status": {"phase": phase}}, subresource="status")
                        break
                    except NotFound:
                        await asyncio.sleep(0.02)

    ready = asyncio.create_task(up_cli(*register(site, "--ssh-private-key", str(key), "--wait", host="r")))
    await becomes(f"{site}-r", "Joining", "Ready")
    ran = await ready
    assert (ran.status, ran.out.splitlines()[-1]) == (0, f"machine/{site}-r is Ready")
    failed = asyncio.create_task(up_cli(*register(site, "--wait", host="f")))
    await becomes(f"{site}-f", "Failed")
    ran = await failed
    assert (ran.status, f"`kubectl unbounded why machine/{site}-f` explains it" in ran.err) == (1, True)
    late = await up_cli(*register(site, "--wait", "--timeout", "100ms", host="l"))
    assert (late.status, "is not Ready within 0.1 s\n" in late.err) == (3, True)


async def test_manual_bootstrap_prints_a_script_or_user_data(up_cli: Cli, up_api: HttpApi, site: str) -> None:
    said = ("--site", site, "--node-label", "a=b", "--agent-url", "https://mirror.example.com/a b.tar.gz")
    refused = await up_cli("machine", "manual-bootstrap", "web8", *said)
    assert (refused.status, "--agent-url" in refused.err) == (2, True)
    said = (*said[:-1], "https://mirror.example.com/agent.tar.gz")
    script = await up_cli("machine", "manual-bootstrap", "web8", *said)
    assert "no Service kube-system/kube-dns" in script.err
    assert "set one with `unbounded up --cluster-dns ADDRESS`" in script.err
    assert f"the host gets {up_api.config.server} as the API server's address" in script.err
    bash = ["bash", "-n"]
    checked = await asyncio.to_thread(subprocess.run, bash, input=script.out, text=True, check=False)
    assert checked.returncode == 0
    _, _, rest = script.out.partition('agent.json" <<')
    config = json.loads(rest.partition("\n")[2].partition("\nEND_OF_FILE")[0])
    found = await token_of(up_api, site)
    assert found is not None
    assert config["MachineName"] == config["NodeName"] == "web8"
    assert config["Kubelet"]["Auth"]["BootstrapToken"] == found.token.text.reveal()
    assert config["Kubelet"]["Labels"] == {
        "a": "b",
        "unbounded-cloud.io/machine": "web8",
        "unbounded-cloud.io/site": site,
    }
    assert config["Kubelet"]["ApiServer"] == up_api.config.server
    assert config["Cluster"]["Version"] == "1.32.0"
    assert "export AGENT_URL=https://mirror.example.com/agent.tar.gz" in script.out
    user_data = await up_cli("machine", "manual-bootstrap", "web8", *said, "--variant", "cloud-init")
    assert user_data.out.startswith("#cloud-config\n")
    files = {file["path"]: file for file in yaml.safe_load(user_data.out)["write_files"]}
    assert json.loads(files["/etc/unbounded/agent/config.json"]["content"]) == config


async def test_a_machine_that_is_there_says_what_was_not_typed(up_cli: Cli, up_api: HttpApi, site: str) -> None:
    kubernetes = {"version": "v1.30.0", "nodeLabels": {"kept": "yes"}}
    labels = {"unbounded-cloud.io/site": site}
    name = f"{site}-there"
    await up_api.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": {"kubernetes": kubernetes}})
    ran = await up_cli("machine", "manual-bootstrap", name, "--site", site, *AGENT)
    assert '"Version": "1.30.0"' in ran.out
    assert '"kept": "yes"' in ran.out
    ran = await up_cli("machine", "manual-bootstrap", name, "--site", "tokenless")
    assert ran.status != 0
    assert ran.out == ""


async def test_manual_bootstrap_includes_proxy_and_authorities_of_the_configuration(
    up_cli: Cli, up_api: HttpApi, site: str
) -> None:
    """Also where no Machine is there yet: its agent makes it, and the configuration selects it then."""

    async def told(name: str, *more: str) -> Any:
        ran = await up_cli(
            "machine", "manual-bootstrap", name, "--site", site, "--variant", "cloud-init", *AGENT, *more
        )
        assert ran.status == 0, ran.err
        files = {file["path"]: file for file in yaml.safe_load(ran.out)["write_files"]}
        return json.loads(files["/etc/unbounded/agent/config.json"]["content"])

    labels = {"unbounded-cloud.io/site": site}
    template = {"proxy": {"https": "http://proxy:3128"}, "caBundle": PEM}
    for name, priority, its in ((f"{site}-best", 2, template), (f"{site}-other", 1, {"agent": {"image": "r/i:v1"}})):
        spec = {"machineSelector": {"matchLabels": labels}, "priority": priority, "template": its}
        await up_api.create(CONFIGURATIONS, {"metadata": {"name": name}, "spec": spec})
        meta = {"name": f"{name}-v1", "labels": {LABEL_CONFIGURATION: name}}
        await up_api.create(VERSIONS, {"metadata": meta, "spec": {"version": 1, "template": its}})
    found = await told(f"{site}-new")
    assert (found["Proxy"], found["CaBundle"]) == ({"HTTPS": "http://proxy:3128"}, PEM)
    await publish_once(up_api, PUBLIC_KEY)
    try:
        assert (await told(f"{site}-new"))["Upgrade"] == {"PublicKey": PUBLIC_KEY}
    finally:
        await up_api.delete(CONFIG_MAPS, CONFIGMAP_RELEASES, namespace=NAMESPACE)
    ref = {"name": f"{site}-other", "version": 1}
    body = {"metadata": {"name": f"{site}-named", "labels": labels}, "spec": {"configurationRef": ref}}
    await up_api.create(MACHINES, body)
    assert "Proxy" not in await told(f"{site}-named")
    await up_api.patch(MACHINES, f"{site}-named", {"spec": {"configurationRef": {"version": 7}}})
    ran = await up_cli("machine", "manual-bootstrap", f"{site}-named", "--site", site, *AGENT)
    assert (ran.status, ran.out) == (1, "")
    assert f"MachineConfigurationVersion {site}-other-v7 does not exist" in ran.err


async def test_allow_join_increments_the_counter_only_after_use(up_cli: Cli, up_api: HttpApi) -> None:
    await up_api.create(MACHINES, {"metadata": {"name": "joins"}, "spec": {}})
    for verb in ("patched", "unchanged"):
        ran = await up_cli("machine", "allow-join", "joins")
        assert (ran.status, ran.out) == (0, f"machine.unbounded-cloud.io/joins {verb}\n")
    used = [
        {"purpose": purpose, "cause": "Allowed/1", "request": "r", "at": "2026-01-01T00:00:00Z"}
        for purpose in ("agent", "kubelet")
    ]
    await up_api.patch(MACHINES, "joins", {"status": {"join": {"used": used}}}, subresource="status")
    ran = await up_cli("machine", "allow-join", "joins")
    assert ran.out == "machine.unbounded-cloud.io/joins patched\n"
    assert (await up_api.get(MACHINES, "joins")).spec.join_counter == 2
    ran = await up_cli("machine", "allow-join", "nobody")
    assert (ran.status, "Machine nobody does not exist" in ran.err) == (1, True)


async def test_a_ready_machine_is_installed_again_only_when_its_name_was_typed(
    up_cli: Cli, up_api: HttpApi, beside: Path
) -> None:
    """Seen: `allow-join` of a Machine that served had its host installed over, and spoke of certificates alone."""
    ref = {"name": "k", "namespace": NAMESPACE}
    ssh = {"host": "198.51.100.20", "username": "admin", "privateKeyRef": ref}
    await up_api.create(MACHINES, {"metadata": {"name": "serves"}, "spec": {"ssh": ssh, "kubernetes": {}}})
    at = "2026-01-01T00:00:00Z"
    done = {"attempt": "a", "generation": 1, "startedAt": at, "endedAt": at, "failures": 0, "joinCounter": 0}
    await up_api.patch(MACHINES, "serves", {"status": {"phase": "Ready", "provisioning": done}}, subresource="status")
    words = "it is Ready, and machina runs the install script on its host again, over SSH, under the Node that runs now"
    ran = await up_cli("machine", "allow-join", "serves")
    assert (ran.status, ran.out) == (2, "")
    assert "confirm by typing 'serves'" in ran.err
    planned = await up_cli("plan", "machine", "allow-join", "serves")
    assert f"  {words}\n" in planned.out
    command = [sys.executable, "-m", "unbounded.cli.plugin.main", "--kubeconfig", str(beside)]
    async with terminal(*command, "machine", "allow-join", "serves") as screen:
        await screen.shows(rf"serves: {words}\.\s+Type `serves` to continue: ")
        screen.type("serve\n")
        assert await screen.process.wait() == 1
    assert (await up_api.get(MACHINES, "serves")).spec.join_counter == 0
    ran = await up_cli("machine", "allow-join", "serves", "--force")
    assert (ran.status, ran.out) == (0, "machine.unbounded-cloud.io/serves patched\n")


Between = Callable[[HttpApi], Awaitable[object]]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Between], list[str]]:
    """Does something between each read of a Machine by a command and its write; returns the list of these writes."""

    def changing(name: str, change: Between) -> list[str]:
        writes: list[str] = []
        original = HttpApi.patch

        async def patch(self: HttpApi, kind: Any, written: str, body: Any, **named: Any) -> Any:
            if written == name and named.get("manager"):
                writes.append(written)
                await change(self)
            return await original(self, kind, written, body, **named)

        monkeypatch.setattr(HttpApi, "patch", patch)
        return writes

    return changing


def _reports(name: str, *statuses: dict[str, Any]) -> Between:
    """Write one of these statuses at each call, as a controller or the agent would, then none."""
    left = iter(statuses)

    async def write(api: HttpApi) -> None:
        for status in left:
            await api.patch(MACHINES, name, {"status": status}, subresource="status")
            break

    return write


async def test_allow_join_repeats_after_a_write_of_the_status(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]]
) -> None:
    """Seen: a host that reports at the same moment made `allow-join` fail."""
    machine = await up_api.create(MACHINES, {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": {}})
    used = {"purpose": "agent", "cause": "Allowed/1", "request": "r", "at": "2026-01-01T00:00:00Z"}
    reports = ({"operations": {"rebootCounter": 1}}, {"join": {"used": [used]}})
    writes = between(machine.name, _reports(machine.name, *reports))
    ran = await up_cli("machine", "allow-join", machine.name)
    assert (ran.status, ran.out, len(writes)) == (0, f"machine.unbounded-cloud.io/{machine.name} patched\n", 3), ran.err
    assert (await up_api.get(MACHINES, machine.name)).spec.join_counter == 2, "1 was used up meanwhile"


async def test_allow_join_asks_where_the_machine_became_ready_meanwhile(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]]
) -> None:
    ref = {"name": "k", "namespace": NAMESPACE}
    ssh = {"host": "198.51.100.21", "username": "admin", "privateKeyRef": ref}
    body = {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": {"ssh": ssh, "kubernetes": {}}}
    machine = await up_api.create(MACHINES, body)
    at = "2026-01-01T00:00:00Z"
    done = {"attempt": "a", "generation": 1, "startedAt": at, "endedAt": at, "failures": 0, "joinCounter": 0}
    writes = between(machine.name, _reports(machine.name, {"phase": "Ready", "provisioning": done}))
    ran = await up_cli("machine", "allow-join", machine.name)
    assert (ran.status, ran.out, len(writes)) == (2, "", 1), ran.err
    assert f"confirm by typing '{machine.name}'" in ran.err
    assert (await up_api.get(MACHINES, machine.name)).spec.join_counter == 0


async def test_a_loss_is_confirmed_once_however_often_the_write_repeats(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    password = {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
    redfish = {"url": "https://bmc.example.com", "username": "admin", "passwordRef": password}
    spec = {"pxe": {"image": "registry.example.com/i:1", "redfish": redfish}}
    machine = await up_api.create(MACHINES, {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": spec})
    asked: list[tuple[str, ...]] = []

    async def confirm(_invocation: object, machines: tuple[str, ...], _loses: str) -> None:
        asked.append(machines)

    monkeypatch.setattr(intents, "confirm", confirm)
    writes = between(machine.name, _reports(machine.name, *({"operations": {"rebootCounter": n}} for n in (1, 2))))
    ran = await up_cli("machine", "repave", machine.name, "--wait=false")
    assert (ran.status, len(writes)) == (0, 3), ran.err
    assert asked == [(machine.name,), (), ()]


async def test_allow_join_never_writes_to_a_later_machine_of_the_same_name(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]]
) -> None:
    machine = await up_api.create(MACHINES, {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": {}})

    async def create_again(api: HttpApi) -> None:
        await api.delete(MACHINES, machine.name)
        await api.create(MACHINES, {"metadata": {"name": machine.name}, "spec": {}})

    writes = between(machine.name, create_again)
    ran = await up_cli("machine", "allow-join", machine.name)
    assert (ran.status, ran.out, len(writes)) == (1, "", 1), ran.err
    assert (await up_api.get(MACHINES, machine.name)).spec.join_counter == 0


async def test_allow_join_ends_where_each_attempt_is_overtaken(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]]
) -> None:
    machine = await up_api.create(MACHINES, {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": {}})
    reports = [{"operations": {"rebootCounter": number}} for number in range(1, TRIES + 1)]
    writes = between(machine.name, _reports(machine.name, *reports))
    ran = await up_cli("machine", "allow-join", machine.name)
    assert (ran.status, len(writes)) == (1, TRIES)
    assert "another client changed it at the same moment" in ran.err


async def test_a_configuration_is_assigned_despite_a_write_of_the_status(
    up_cli: Cli, up_api: HttpApi, between: Callable[[str, Between], list[str]]
) -> None:
    machine = await up_api.create(MACHINES, {"metadata": {"name": f"busy-{next(NUMBERS)}"}, "spec": {}})
    name = f"of-{machine.name}"
    assert (await up_cli("config", "create", name, "--agent-image", "registry.example.com/node:v1")).status == 0
    writes = between(machine.name, _reports(machine.name, {"operations": {"rebootCounter": 1}}))
    ran = await up_cli("config", "assign", name, machine.name)
    assert (ran.status, len(writes)) == (0, 1), ran.err
    ref = (await up_api.get(MACHINES, machine.name)).spec.configuration_ref
    assert ref is not None
    assert ref.name == name


async def test_one_that_may_join_already_is_printed_as_it_is(up_cli: Cli, up_api: HttpApi) -> None:
    await up_api.create(MACHINES, {"metadata": {"name": "joins-already"}, "spec": {"joinCounter": 1}})
    ran = await up_cli("machine", "allow-join", "joins-already", "-o", "json")
    assert json.loads(ran.out)["metadata"]["name"] == "joins-already"


async def test_a_configuration_is_made_shown_and_assigned(up_cli: Cli, up_api: HttpApi, tmp_path: Path) -> None:
    settings = {"kubelet": {"maxPods": 50}, "sysctl": {"vm.max_map_count": "262144"}}
    (tmp_path / "settings.yaml").write_text(yaml.dump(settings))
    create = ["config", "create", "workers", "--agent-image", "registry.example.com/node:v1", "-l", "pool=a,tier!=x"]
    create += ["--taints", "k=v:NoSchedule,gone:NoExecute", "--node-labels", "a=b,c=d", "--priority", "5"]
    create += ["--settings", str(tmp_path / "settings.yaml")]
    dry = await up_cli(*create, "--dry-run", "client", "-o", "json")
    ran = await up_cli(*create)
    assert ran.out == "machineconfiguration.unbounded-cloud.io/workers created\n"
    there: Raw = await up_api.get(CONFIGURATIONS, "workers")
    assert json.loads(dry.out)["spec"].items() <= there["spec"].items()
    assert there["spec"]["template"] == {
        "agent": {"image": "registry.example.com/node:v1"},
        "kubernetes": {
            "nodeLabels": {"a": "b", "c": "d"},
            "registerWithTaints": [
                {"key": "k", "value": "v", "effect": "NoSchedule"},
                {"key": "gone", "effect": "NoExecute"},
            ],
        },
        **settings,
    }
    assert there["spec"]["machineSelector"]["matchLabels"] == {"pool": "a"}
    for number in (2, 1):
        spec = {"version": number, "template": there["spec"]["template"]}
        meta = {"name": f"workers-v{number}", "labels": {LABEL_CONFIGURATION: "workers"}}
        await up_api.create(VERSIONS, {"metadata": meta, "spec": spec})
    shown = await up_cli("config", "versions", "workers", "-o", "name")
    assert [line.rpartition("/")[2] for line in shown.out.splitlines()] == ["workers-v1", "workers-v2"]
    assert "workers" in (await up_cli("config", "get")).out
    assert yaml.safe_load((await up_cli("config", "get", "workers", "-o", "yaml")).out)["spec"] == there["spec"]

    bound = {"name": "chosen", "annotations": {ANNOTATION_BOUND: "workers"}}
    await up_api.create(MACHINES, {"metadata": bound, "spec": {"configurationRef": {"name": "workers"}}})
    await up_api.create(MACHINES, {"metadata": {"name": "other"}, "spec": {}})
    for verb in ("patched", "unchanged"):
        ran = await up_cli("config", "assign", "workers", "chosen", "other", "--version", "2")
        assert ran.status == 0, ran.err
        assert [line.split()[1] for line in ran.out.splitlines()] == [verb, verb]
    machine: Raw = await up_api.get(MACHINES.raw(), "chosen")
    assert machine["spec"]["configurationRef"] == {"name": "workers", "version": 2}
    assert ANNOTATION_BOUND not in machine["metadata"].get("annotations", {})  # a selector leads it nowhere else
    await up_cli("config", "assign", "workers", "chosen")
    machine = await up_api.get(MACHINES.raw(), "chosen")
    assert machine["spec"]["configurationRef"] == {"name": "workers"}
    ran = await up_cli("config", "assign", "workers", "chosen", "--version", "7")
    assert (ran.status, "has no version 7; it has: 1, 2" in ran.err) == (2, True)
    ran = await up_cli("config", "assign", "workers", "chosen", "nobody")
    assert ran.status == 1


async def test_metalman_of_a_site_is_deployed_where_deployments_are(up_cli: Cli) -> None:
    ran = await up_cli(
        *("site", "deploy-pxe", "--site", "rack1", "--dry-run", "client", "-o", "json", "--interface", "eth1"),
        *("--image-registry", "registry.example.com", "--dhcp-relay", "10.0.0.1", "--dhcp-relay", "10.1.0.0/24"),
    )
    service, deployment = json.loads(ran.out)["items"]
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == "metalman-controller-rack1"
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--dhcp-interface=eth1", "--dhcp-relay=10.0.0.1/32,10.1.0.0/24"} <= set(args)
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1", "--interface", "a/b")
    assert (ran.status, "--interface: 'a/b'" in ran.err) == (2, True)
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1", "--dhcp-relay", "fe80::1")
    assert (ran.status, "--dhcp-relay: fe80::1/128 is not an IPv4 network" in ran.err) == (2, True)


async def test_a_deployed_metalman_serves_booting_machines_as_that_of_up_does(up_cli: Cli, tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text(PEM)
    served = NetbootSettings(
        interface="eth1",
        dhcp_mode=DhcpMode.PROXY,
        http_port=81,
        tftp_port=70,
        dhcp_port=68,
        cluster_dns="10.96.0.10",
        artifact_mirror="https://mirror.example.com",
        ek_ca=roots,
        pcr_policy=PCRPolicy.REQUIRED,
        allow_profile_scripts=True,
    )
    given = [word for name, value in deploy_flags(served).items() for word in (f"--{name}", value)]
    given += ["--image-registry", "registry.example.com"]
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1", "--dry-run", "client", "-o", "json", *given)
    trusted, _service, deployment = json.loads(ran.out)["items"]
    pod = deployment["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "ek-ca")
    assert {"name": "ek-ca", "configMap": {"name": trusted["metadata"]["name"]}} in pod["volumes"]
    parser = ArgumentParser()
    add_arguments(parser, {}, netboot=True)
    _serve, *args = pod["containers"][0]["args"]
    ((file, text),) = trusted["data"].items()
    assert f"--ek-ca={mount['mountPath']}/{file}" in args
    there = [word.replace(f"{mount['mountPath']}/{file}", str(roots)) for word in args]
    netboot = parse_settings(parser.parse_args(there), {}, netboot=True)[0].netboot
    assert netboot is not None
    assert text == PEM
    assert replace(netboot, cache_dir=served.cache_dir, flags=served.flags) == served


async def test_a_metalman_without_dhcp_serves_boot_images_with_the_certificate_of_a_secret(
    up_cli: Cli, tmp_path: Path
) -> None:
    given = ("--media-secret", "rack1-media", "--media-url", "https://boot", "--dhcp-mode", "none")
    shown = ("--dry-run", "client", "-o", "json", "--image-registry", "registry.example.com")
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1", *shown, *given)
    _service, deployment = json.loads(ran.out)["items"]
    pod = deployment["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "media")
    assert {"name": "media", "secret": {"secretName": "rack1-media"}} in pod["volumes"]
    for file in ("tls.crt", "tls.key"):  # as Secrets of type kubernetes.io/tls have them
        (tmp_path / file).write_text("-")
    parser = ArgumentParser()
    add_arguments(parser, {}, netboot=True)
    args = [word.replace(mount["mountPath"], str(tmp_path)) for word in pod["containers"][0]["args"][1:]]
    netboot = parse_settings(parser.parse_args(args), {}, netboot=True)[0].netboot
    assert netboot is not None
    assert netboot.media == MediaSettings(
        certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", url="https://boot"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dhcp-mode", "never"], "--dhcp-mode: 'never' is not a mode: choose from"),
        (["--http-port", "x"], "--http-port: 'x' is not a port"),
        (["--cluster-dns", "x"], "--cluster-dns: 'x' is not an IPv4 address"),
        (["--pcr-policy", "Strict"], "--pcr-policy: 'Strict' is not a policy: choose from Required, Recorded"),
        (["--ek-ca", "/none"], "--ek-ca: /none: No such file"),
        (["--media-url", "https://boot"], "--media-url needs --media-secret NAME"),
        (["--media-secret", "a/b"], "--media-secret: 'a/b' is not the name of a Secret of unbounded-kube"),
        (["--media-secret", "a", "--media-url", "http://b"], "--media-url: 'http://b': BMCs fetch boot images by"),
    ],
)
async def test_settings_of_network_boot_are_checked(up_cli: Cli, words: list[str], said: str) -> None:
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1", "--dry-run", "client", *words)
    assert (ran.status, said in ran.err) == (2, True), ran.err


async def test_roots_with_a_private_key_are_not_published(up_cli: Cli, tmp_path: Path) -> None:
    authority, pem = trustme.CA(), tmp_path / "both.pem"
    authority.cert_pem.write_to_path(str(pem))
    words = ("site", "deploy-pxe", "--site", "rack1", "--dry-run", "client", "--image", "r.example.com/m:1")
    ran = await up_cli(*words, "--ek-ca", str(pem))
    assert ran.status == 0, ran.err
    authority.private_key_pem.write_to_path(str(pem), append=True)
    ran = await up_cli(*words, "--ek-ca", str(pem))
    assert (ran.status, ran.out, f"--ek-ca: {pem}: has a private key" in ran.err) == (2, "", True)


async def test_networks_are_checked_and_made_by_others(up_cli: Cli) -> None:
    ran = await up_cli("site", "init", "--name", "net", "--node-cidr", "10.0.0.0/8", "--cni-manifests", "x")
    assert (
        ran.status,
        "--node-cidr, --cni-manifests: no effect: install the cluster's network and storage" in ran.err,
    ) == (0, True)
    ran = await up_cli("site", "init", "--name", "net", "--pod-cidr", "10.0.0.1/8")
    assert (ran.status, "--pod-cidr: 10.0.0.1/8 has host bits set" in ran.err) == (2, True)
    ran = await up_cli("site", "init", "--name", "net", "--token-ttl", "1s")
    assert (ran.status, "--token-ttl: a token is valid for 10m to 8760h" in ran.err) == (2, True)


def test_serve_pxe_hands_its_flags_on() -> None:
    from unbounded.cli.deploy.sites import pxe_arguments

    _, told, _, _ = Cli(Path("/k")).told(
        *("site", "serve-pxe", "--site", "rack1", "--dhcp-interface", "eth1", "--leader-elect=false"),
        *("--trusted-proxy", "10.0.0.1", "--trusted-proxy", "10.0.0.2", "--kubeconfig", "/k", "--log-level", "debug"),
    )
    given = pxe_arguments(told.args)
    assert set(given) == {
        *("--site=rack1", "--dhcp-interface=eth1", "--leader-elect=false", "--trusted-proxy=10.0.0.1"),
        *("--trusted-proxy=10.0.0.2", "--kubeconfig=/k", "--log-format=text", "--log-level=debug"),
    }
    ran = Cli(Path("/k")).now("site", "serve-pxe", "--site", "rack1", "--as", "joe")
    assert (ran.status, "--as: metalman does not impersonate a user" in ran.err) == (2, True)
