"""The guides in docs/: every command of them, run unchanged by a user with kubectl.

Those of hosts (agent.md, upgrade.md, reset.md) are followed in packages/unbounded/tests/agent/e2e.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, RELEASE_URL, Shell, Stage, follow
from tests.e2e.plane import Plane, phase_is, plane
from tests.e2e.standin import SHA256, behave, kubelet, kubelets, standin_agent, started
from tests.support.paths import ROOT
from tests.support.ssh.sshd import USER, Fleet, keygen, missing, sign, sshd_fleet
from unbounded.api.core import NODES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import NotFound
from unbounded.machina.machines.credentials import READ_EVERY_S
from unbounded_lab.bmc import LabBmc

ABSENT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
needs_sshd = pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
LOST: Final = "reboot-worker-07"
PAUSED: Final = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}}


def shell_of(it: Plane, changes: Mapping[str, str]) -> Shell:
    return Shell(it.shell.folder, it.shell.kubeconfig, changes)


async def test_quickstart_operations_and_bare_metal(tmp_path: Path) -> None:
    """One user goes from the quickstart on to operations while another one is at the bare metal: both wait a lot."""
    bare_metal, lab = LabBmc(boot_s=0.2, shutdown_s=0.2), plane(tmp_path / "data", "--lab", "3")
    async with bare_metal as bmc, lab as it, asyncio.TaskGroup() as users:
        users.create_task(_learns(it))
        users.create_task(_has_bare_metal(it, bmc))


async def _learns(it: Plane) -> None:
    shell = shell_of(it, {})
    said = await follow(DOCS / "quickstart.md", shell)
    assert "memory is being replaced" in said

    async def its_executor_is_gone() -> None:
        """Of an operation; no other one begins there meanwhile."""
        await it.api.patch(MACHINES, "lab-03", PAUSED)
        spec = {"machineRef": "lab-03", "operationKind": "HostReboot"}
        await it.api.create(MACHINE_OPERATIONS, {"metadata": {"name": LOST}, "spec": spec})
        execution = {"executor": "unbounded-agent/worker-07", "incarnation": "i", "machineUID": "u", "binding": "b"}
        claimed = {"status": {"phase": "InProgress", "execution": execution}}
        await it.api.patch(MACHINE_OPERATIONS, LOST, claimed, subresource="status")

    said = await follow(DOCS / "operations.md", shell, {"Stop": its_executor_is_gone})
    assert "another-reboot" in said
    assert "it ends once its executor has been silent for 60 s" in said
    assert (await it.api.get(MACHINE_OPERATIONS, LOST)).spec.abandon


async def _has_bare_metal(it: Plane, bmc: LabBmc) -> None:
    shutil.copytree(ROOT / "examples", it.shell.folder / "examples")
    changes = {
        "https://bmc-rack1-01.example.com": bmc.url,
        "username: admin": f"username: {bmc.username}",
        "change-me": bmc.password,
    }
    said = await follow(DOCS / "bare-metal.md", shell_of(it, changes))
    assert "machineoperation.unbounded-cloud.io/rack1-off" in said


@asynccontextmanager
async def provisioning(folder: Path, hosts: int, *, lab: int = 0, but: tuple[str, ...] = ()) -> AsyncIterator[Site]:
    """A control plane with hosts over SSH, of which `but` have no kubelet."""
    with sshd_fleet(folder / "fleet", hosts, bastion=True) as fleet, standin_agent(folder / "agent") as url:
        async with plane(folder / "data", *(("--lab", str(lab)) if lab else ())) as it, kubelets(it.api, but=but):
            yield Site(it, fleet, url)


class Site:
    """The prerequisites of the guides: keys at home, and hosts at their addresses."""

    def __init__(self, it: Plane, fleet: Fleet, url: str) -> None:
        self.it, self.fleet, self.url = it, fleet, url
        home = it.shell.folder / ".ssh"
        home.mkdir()
        shutil.copy(fleet.key, home / "id_ed25519")
        fleet.authorize(keygen(home / "bastion", "ed25519").with_name("bastion.pub"))
        keygen(home / "certified", "ed25519", passphrase="correct horse")
        sign(fleet.authority, home / "certified.pub")
        assert fleet.bastion is not None
        first = fleet.servers[0].address
        self.changes = {
            f"--agent-url {RELEASE_URL}": f"--agent-url {url} --agent-sha256 {SHA256}",
            RELEASE_URL: url,
            "10.0.0.50": first,
            "10.0.0.51": fleet.servers[1].address,
            "10.0.0.52": fleet.servers[2].address,
            "10.0.1.": f"{first.rpartition('.')[0]}.",
            "in 10 11 12": "in 4 5 6",
            "bastion.example.com": fleet.bastion.at,
            "--bastion-ssh-username jump": f"--bastion-ssh-username {USER}",
        }


@pytest.mark.root
@needs_sshd
async def test_ssh(tmp_path: Path) -> None:
    async with provisioning(tmp_path, 6) as site:
        said = await follow(DOCS / "ssh.md", shell_of(site.it, site.changes))
        log = site.fleet.bastion.log if site.fleet.bastion else ""
    assert "Accepted publickey" in log
    first, second, third, *many = site.fleet.servers
    assert started(first) == ["dc1-worker-01"]
    assert started(second) == ["dc1-worker-02"] * 2, "it was allowed to join once more"
    assert started(third) == ["dc1-worker-03"]
    assert all(len(started(host)) == 1 for host in many)
    assert "True Reachable" in said


@pytest.mark.root
@needs_sshd
async def test_troubleshooting(tmp_path: Path) -> None:
    """Every trouble is there when the guide comes to it, and gone after it."""
    async with provisioning(tmp_path, 5, lab=1, but=("worker-05",)) as site:
        shell = shell_of(site.it, site.changes)
        trouble = Trouble(site, shell)
        await trouble.begin()
        said = await follow(DOCS / "troubleshooting.md", shell, trouble.stages())
        for name in ("worker-01", "worker-02", "worker-03", "worker-04"):
            await site.it.wait(name, phase_is("Ready"))
    log = "==> install: Events ProvisioningFailed of the Machine"
    for words in ("ConnectionRefused", "HostKeyChanged", log, "is on fire", "token", "resume lab-01"):
        assert words in said, words


class Trouble:
    """Stages the troubles of troubleshooting.md."""

    def __init__(self, site: Site, shell: Shell) -> None:
        self.it, self.hosts, self.shell, self.url = site.it, site.fleet.servers, shell, site.url

    async def begin(self) -> None:
        await self.shell.run("kubectl unbounded site init --name dc1")
        secret = "kubectl create secret generic ssh-key --namespace unbounded-kube"
        await self.shell.run(f"{secret} --from-file=ssh-privatekey=$HOME/.ssh/id_ed25519")
        self.hosts[0].close()
        await self._make("worker-01", 0)
        await self.it.wait("worker-01", lambda one: bool(one.status.message))

    def stages(self) -> Mapping[str, Stage]:
        return {
            "Another host key": self.rekeyed,
            "The script failed": self.failed,
            "The token has run out": self.expired,
            "It joined, and there is no Node": self.alone,
            "Operations": self.paused,
        }

    async def rekeyed(self) -> None:
        self.hosts[0].start()
        await self._make("worker-02", 1)
        await self.it.wait("worker-02", phase_is("Ready"))
        self.hosts[1].down()
        self.hosts[1].rekey()
        self.hosts[1].start()
        await self.it.api.patch(MACHINES, "worker-02", {"spec": {"joinCounter": 1}})
        await self.it.wait("worker-02", lambda one: "HostKeyChanged" in str(one.status.conditions))

    async def failed(self) -> None:
        behave(self.hosts[2], "echo 'the disk is on fire' >&2; exit 1")
        await self._make("worker-03", 2)
        await self.it.wait("worker-03", phase_is("Failed"))
        behave(self.hosts[2], "")

    async def expired(self) -> None:
        await self.it.wait("worker-03", phase_is("Ready"))
        names = [one.metadata.name for one in (await self.it.api.list(SECRETS, namespace="kube-system")).items]
        for name in (one for one in names if one.startswith("bootstrap-token-")):
            past = {"stringData": {"expiration": "2020-01-01T00:00:00Z"}}
            await self.it.api.patch(SECRETS, name, past, namespace="kube-system")
        await asyncio.sleep(READ_EVERY_S + 0.5)  # as long as what was read of them before may count
        await self._make("worker-04", 3)
        await self.it.wait("worker-04", lambda one: "TokenUnusable" in str(one.status.conditions))

    async def alone(self) -> None:
        await self._make("worker-05", 4)
        await self.it.wait("worker-05", phase_is("Joining"))

    async def paused(self) -> None:
        await self.it.api.patch(MACHINES, "lab-01", PAUSED)
        spec = {"machineRef": "lab-01", "operationKind": "HostPowerOff"}
        await self.it.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "off-lab-01"}, "spec": spec})

    async def _make(self, name: str, number: int) -> None:
        ref = {"name": "ssh-key", "namespace": NAMESPACE}
        spec = {
            "ssh": {"host": self.hosts[number].at, "username": USER, "privateKeyRef": ref},
            "kubernetes": {},
            "agent": {"url": self.url, "sha256": SHA256},
        }
        try:
            await self.it.api.get(MACHINES, name)
        except NotFound:
            await self.it.api.create(MACHINES, {"metadata": {"name": name}, "spec": spec})


async def test_container_cloud(tmp_path: Path) -> None:
    """The host behind the BMC never boots: its install fails, and it goes back to stock. Another one is adopted."""
    bare_metal, served = LabBmc(boot_s=0.2, shutdown_s=0.2), ("--container-cloud", "--min-other-managers", "0")
    async with bare_metal as bmc, plane(tmp_path / "data", *served) as it:
        text = (ROOT / "examples" / "container-cloud" / "machine.yaml").read_text()
        address = f"redfish+{bmc.url}/redfish/v1/Systems/1"
        changes = {"redfish+https://192.0.2.130/redfish/v1/Systems/1": address, "replace-me": bmc.password}
        for old, new in (changes | {"username: admin": f"username: {bmc.username}"}).items():
            assert old in text
            text = text.replace(old, new)
        example = it.shell.folder / "example.yaml"
        example.write_text(text)
        reference = {"name": "pw", "namespace": NAMESPACE}
        redfish = {"url": "https://127.0.0.1:9", "username": "u", "passwordRef": reference}
        await it.api.create(MACHINES, {"metadata": {"name": "rack1-01"}, "spec": {"pxe": {"redfish": redfish}}})
        own = {"kubernetes": {"nodeLabels": {"rack": "rack1"}}}
        await it.api.create(MACHINES, {"metadata": {"name": "rack1-02"}, "spec": own})
        changes = {"examples/container-cloud/machine.yaml": str(example)}
        async with kubelet(it.api, "rack1-02"):
            said = await follow(DOCS / "container-cloud.md", shell_of(it, changes))
            adopted = await it.api.get(MACHINES, "rack1-02")
            node = await it.api.get(NODES, "rack1-02")
    assert msgspec.to_builtins(adopted.spec.kubernetes)["nodeLabels"] == {"rack": "rack1"}
    assert "unbounded-cloud.io/before-claim" not in adopted.metadata.annotations
    assert (node.ready, node.spec.unschedulable, node.metadata.labels.get("rack")) == (True, False, "rack1")
    assert "stacklight" not in node.metadata.labels
    assert bmc.password not in said
    chain = ("because operation/cc-", "bmh/master-0 -n default provisioning: used by Machine example-ns/")
    for words in ("machine.cluster.k8s.io/example-control-plane -n example-ns Provision (", *chain):
        assert words in said, words


async def test_explain_api(tmp_path: Path) -> None:
    async with plane(tmp_path / "data", "--lab", "1") as it:
        said = await follow(DOCS / "explain-api.md", shell_of(it, {}))
        with pytest.raises(NotFound):
            await it.api.get(MACHINE_OPERATIONS, "reboot-lab-01")
    for words in ('"openapi":"3.1.0"', '"what":"create machineoperation.unbounded-cloud.io/reboot-lab-01"'):
        assert words in said, words
    assert re.findall(r'"complete":(\w+)', said) == ["true", "false"]
