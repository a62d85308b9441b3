"""A machine with a TPM under `unbounded up --pxe-interface`: what it gets when it proves itself, and what others get.

The machine is a script and a software TPM; the way to its token is that of images: attest.sh, HTTP, metalman's rights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.cli.running import KUBECTL, Up
from tests.cli.test_netboot import IMAGE, LEASE, apply, ended, refused, replace, serving
from tests.metalman.support.dhcp_lab import Lab, lab
from tests.metalman.support.surrounding import around, play
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.software_tpm import needs_tpm, unix_tpm
from tests.support.token_groups import machine_of
from tests.support.waiting import eventually
from unbounded.agent.paths import HostPaths
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet
from unbounded.join.csr import IdentityFiles, agent_identity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
    needs_tpm,
]

COMMON: Final = ROOT / "images" / "common"
WHO: Final = """
import json, ssl, sys, urllib.request
url, token = sys.argv[1:]
body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
context = ssl.create_default_context(cafile=CA)
asked = urllib.request.Request(url + "/apis/authentication.k8s.io/v1/selfsubjectreviews", body, headers)
print(urllib.request.urlopen(asked, context=context).read().decode())
"""

AGENT_ATTESTS: Final = """
import asyncio, sys
from unbounded.join import tpm
from unbounded.join.attest_client import attest
print(asyncio.run(attest(sys.argv[1], tpm.socket_tpm(sys.argv[2]))).text)
"""
AGENT_JOINS: Final = """
import asyncio, pathlib, sys
from unbounded.agent.daemon.identity import join
from unbounded.agent.paths import HostPaths
from unbounded.join.agent_config import AgentConfig
from unbounded.kube.logs import SecretStr
import msgspec
root, config, token = sys.argv[1:]
read = msgspec.json.decode(pathlib.Path(config).read_bytes(), type=AgentConfig)
asyncio.run(join(HostPaths(pathlib.Path(root)), read, token=SecretStr(token)))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Lab]:
    with lab() as made:
        yield made


class Machine:
    """The host on the segment, with attest.sh as an image has it."""

    def __init__(self, network: Lab, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self.ca = folder / "ca.pem"
        subprocess.run([COMMON / "install-attest", folder / "lib"], check=True)

    async def attest(self, tpm: str, url: str) -> tuple[int, str]:
        """The exit status, and all that is printed."""
        command = f'"{self._folder}/lib/attest.sh" --tpm "{tpm}" --ca "{self.ca}" "{url}"; echo "=$?"'
        environ = ("env", f"PATH={Path(sys.executable).parent}:/usr/bin:/bin")
        said = await self._network.run("near", *environ, "sh", "-c", command, within_s=60)
        printed, _, code = said.strip().rpartition("=")
        return int(code), printed.strip()

    async def attest_as_agent(self, tpm: str, url: str) -> str:
        """The token that the agent's own client gets."""
        return (await self._python("near", AGENT_ATTESTS, url, tpm)).strip()

    async def join_as_agent(self, running: Up, name: str, token: str) -> Path:
        """Get the agent's certificate with a token; the folder of its identity."""
        config = json.loads(await running.kubectl("config", "view", "--raw", "-o", "json"))
        told = AgentConfig(
            machine_name=name,
            cluster=JoinedCluster(ca_cert_base64=b64encode(self.ca.read_bytes()).decode(), version="1.34.0"),
            kubelet=Kubelet(api_server=config["clusters"][0]["cluster"]["server"]),
        )
        file, root = self._folder / "agent.json", self._folder / "host"
        file.write_bytes(msgspec.json.encode(told))
        said = await self._python("server", AGENT_JOINS, str(root), str(file), token)
        assert "Traceback" not in said, said
        return HostPaths(root).identity

    async def _python(self, where: str, code: str, *arguments: str) -> str:
        sources = f"PYTHONPATH={PYTHONPATH}"
        return await self._network.run(where, "env", sources, sys.executable, "-c", code, *arguments, within_s=60)


async def installed(network: Lab, running: Up, beside: Any) -> tuple[str, str]:
    """Request a machine that becomes a Node, and let it boot and install itself; return its name, and the URL of its
    boot.
    """
    name = beside.machine["metadata"]["name"]
    beside.machine["spec"]["kubernetes"] = {}
    await apply(running, beside.secret, beside.machine, replace(name))
    assert await beside.next("boot") == "Pxe"
    said = await play(network)
    assert list(said)[-1] == "cloud-init done", said
    return name, said["kernel"]["url"]


async def who(network: Lab, running: Up, machine: Machine, token: str) -> dict[str, Any]:
    """Return the API server's identity of a token's holder."""
    config = json.loads(await running.kubectl("config", "view", "--raw", "-o", "json"))
    code = WHO.replace("CA", repr(str(machine.ca)))
    said = await network.run("server", sys.executable, "-c", code, config["clusters"][0]["cluster"]["server"], token)
    found: dict[str, Any] = json.loads(said)["status"]["userInfo"]
    return found


async def make_node(running: Up, name: str) -> None:
    """Do what the machine does with a certificate, in its place."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"unbounded-cloud.io/machine": name}},
    }
    await apply(running, node)
    status = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}})
    await running.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)


@asynccontextmanager
async def waiting_for_its_node(network: Lab, folder: Path) -> AsyncIterator[tuple[Up, Machine, str, str]]:
    async with (
        around(network, folder, {"lab/host:v1": IMAGE}, LEASE) as beside,
        serving(network, folder / "data") as running,
    ):
        name, url = await installed(network, running, beside)
        yield running, Machine(network, folder), name, url


async def test_the_token_of_a_boot_is_for_its_tpm_and_its_machine(network: Lab, tmp_path: Path) -> None:
    with unix_tpm(tmp_path / "tpm") as tpm, unix_tpm(tmp_path / "foreign") as foreign:
        async with waiting_for_its_node(network, tmp_path) as (running, machine, name, url):
            code, token = await machine.attest(tpm, url)
            assert code == 0, token
            user = await who(network, running, machine, token)
            uid = (await running.get("machine", name))["metadata"]["uid"]
            assert user["username"] == f"system:bootstrap:{token.partition('.')[0]}"
            assert f"system:bootstrappers:unbounded-machine:{uid}" in user["groups"]
            assert (await machine.attest(tpm, url)) == (0, token)  # an answer that was lost is given again

            assert await machine.attest_as_agent(tpm, url) == token
            identity = await machine.join_as_agent(running, name, token)
            held = IdentityFiles(identity, agent_identity(name)).stored()
            assert held is not None
            (asked,) = (await running.get("csr"))["items"]
            assert machine_of(tuple(asked["spec"]["groups"])) == uid
            approved = (await running.get("machine", name))["status"]["join"]["used"]
            assert {one["request"] for one in approved} == {asked["metadata"]["uid"]}, approved

            code, said = await machine.attest(foreign, url)
            assert (code, "403: the TPM's endorsement key is SHA256:" in said) == (1, True), said
            base = url.partition("/boot/")[0]
            assert await machine.attest(tpm, base) == (1, "attest: the server answers 405")  # without the boot's prefix
            assert await machine.attest(tpm, f"{base}/boot/{'a' * 32}") == (1, "attest: 404: not found")
            assert (await who(network, running, machine, token))["username"] == user["username"]  # as good as before

            await make_node(running, name)
            operation = await ended(running, "replace")
            assert operation["status"]["phase"] == "Complete", (operation["status"], running.printed)
            found = await running.get("machine", name)
            conditions = {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}
            assert conditions["Attested"] == ("False", "ForeignEK")  # what was seen last

            async def closed() -> bool:
                return await machine.attest(tpm, url) == (1, "attest: 404: not found")

            await eventually(closed, within_s=20)
        secret = token.partition(".")[2]
        assert secret not in running.printed
        assert secret not in (tmp_path / "data" / "audit.log").read_text()
        assert "Traceback" not in running.printed
        assert refused(tmp_path / "data") == []
