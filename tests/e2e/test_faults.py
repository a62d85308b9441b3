"""Faults of hosts and connections during provisioning by machina, and their results.

Each Machine reports its fault and continues after the repair, and no other is delayed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.running import KUBECTL
from tests.e2e.plane import Plane, phase_is, plane, reason
from tests.e2e.standin import SHA256, behave, half_arrived, kubelets, make_node, standin_agent, started, unpack_half
from tests.support.hosts import until
from tests.support.ssh.sshd import USER, Fleet, Server, fingerprint_of, keygen, missing, sshd_fleet
from unbounded.api.conditions import ConditionType
from unbounded.api.core import EVENTS, SECRETS
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.api.names import NAMESPACE

ABSENT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
SITE: Final = "lab"
WITHIN_S: Final = 150.0
WAITS: Final = "touch /srv/at-work; while [ ! -e /srv/go-on ]; do sleep 0.1; done"
FAILS: Final = "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo 'the disk is on fire' >&2; exit 1"
AWAY_S: Final = 2.0  # long enough to be noticed; nothing depends on it
SMALL: Final = "mkdir -p /srv/install; mount -t tmpfs -o size=16k tmpfs /srv/install"
MANY: Final = 12
KILLS: Final = 20
READY: Final = phase_is(MachinePhase.READY)


@dataclass
class Lab:
    """A control plane, hosts, and where the agent is."""

    it: Plane
    fleet: Fleet
    url: str

    async def register(self, host: Server, *more: str, key: Path | None = None) -> str:
        """The Machine's name. Its Secret is its own."""
        name = f"{SITE}-{host.name}"
        release = f"--agent-url {self.url} --agent-sha256 {SHA256}"
        flags = f"--ssh-private-key {key or self.fleet.key} --ssh-secret-name {name} {release}"
        where = f"--site {SITE} --name {host.name} --host {host.at} --ssh-username {USER}"
        await self.it.shell.run(f"kubectl unbounded machine register {where} {flags} {' '.join(more)}")
        return name

    @property
    def through_the_bastion(self) -> str:
        assert self.fleet.bastion is not None
        return f"--bastion-host {self.fleet.bastion.at} --bastion-ssh-username {USER}"

    async def ready(self, name: str) -> Machine:
        return await self.it.wait(name, READY, within_s=WITHIN_S)

    async def says(self, name: str, kind: ConditionType, wanted: str) -> str:
        """Wait until a condition has this status and reason; its message."""
        seen = await self.it.wait(name, lambda machine: reason(machine, kind) == wanted, within_s=WITHIN_S)
        return next(one.message for one in seen.status.conditions if one.type == kind)

    async def attempt(self, name: str) -> str:
        """Of its provisioning: the name of the last one."""
        provisioning = (await self.it.api.get(MACHINES, name)).status.provisioning
        assert provisioning is not None
        return provisioning.attempt

    async def use_key(self, name: str, key: Path) -> None:
        """Replace what is in the Machine's Secret."""
        body = {"stringData": {"ssh-privatekey": key.read_text()}}
        await self.it.api.patch(SECRETS, name, body, namespace=NAMESPACE)

    async def touch(self, name: str) -> None:
        """Another spec: what has failed is tried again at once."""
        await self.it.api.patch(MACHINES, name, {"spec": {"kubernetes": {"nodeLabels": {"touched": "true"}}}})


async def at_work(host: Server) -> None:
    """Until the script waits."""

    async def waits() -> bool:
        return (host.folder / "at-work").exists()

    await until(waits, within_s=WITHIN_S)


def go_on(host: Server) -> None:
    (host.folder / "go-on").touch()


# Each of these has a host of its own


async def sudo_wants_a_password(lab: Lab, host: Server) -> None:
    host.sudo("wants a password")
    name = await lab.register(host)
    said = await lab.says(name, ConditionType.PROVISIONING, "False/SudoRefused")
    assert "sudo" in said, said
    assert started(host) == []
    host.sudo("allows")
    await lab.touch(name)
    await lab.ready(name)


async def the_disk_is_full(lab: Lab, host: Server) -> None:
    host.down()
    host.mounts = (SMALL,)
    host.start()
    name = await lab.register(host)
    said = await lab.says(name, ConditionType.PROVISIONING, "False/DiskFull")
    assert re.search("space|full", said), said
    assert started(host) == []
    assert host.run("mount -o remount,size=64m /srv/install").returncode == 0
    await lab.touch(name)
    await lab.ready(name)


async def the_release_is_not_there(lab: Lab, host: Server) -> None:
    gone = f"--agent-url {lab.url.rpartition('/')[0]}/gone.tar.gz"
    name = await lab.register(host, gone)
    said = await lab.says(name, ConditionType.PROVISIONING, "False/ReleaseNotFound")
    assert "404" in said, said
    answer = await lab.it.shell.run(f"kubectl unbounded why machine/{name}")
    assert f"""try:  kubectl patch mach {name} --type=merge -p '{{"spec": {{"agent": {{"url": "URL"}}}}}}'""" in answer
    await lab.it.api.patch(MACHINES, name, {"spec": {"agent": {"url": lab.url}}})
    await lab.ready(name)


async def the_script_fails_and_says_a_lot(lab: Lab, host: Server) -> None:
    behave(host, FAILS)
    name = await lab.register(host)
    said = await lab.says(name, ConditionType.PROVISIONING, "False/Failed")
    assert len(said) < 2000
    told = [one async for one in events(lab, name) if "the disk is on fire" in one]
    assert told
    assert len(told[0]) <= 1100
    behave(host, "")
    await lab.touch(name)
    await lab.ready(name)
    assert started(host) == [name, name]


async def events(lab: Lab, name: str) -> AsyncIterator[str]:
    """Messages of Events on a Machine, once there are any."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(WITHIN_S):
        while not any("the disk is on fire" in one.get("message", "") for one in found):
            listed = await lab.it.api.list(EVENTS.raw(), namespace="default")
            found = [one for one in listed.items if one["involvedObject"].get("name") == name]
            await asyncio.sleep(0.2)
    for one in found:
        yield one["message"]


async def the_host_key_is_another_one(lab: Lab, host: Server) -> None:
    expected = host.host_key
    host.down()
    host.rekey()
    host.start()
    name = await lab.register(host, f"--host-key '{expected}'")
    said = await lab.says(name, ConditionType.PROVISIONING, "False/HostKeyChanged")
    assert host.fingerprint in said, said
    assert "publickey" not in host.log, "nobody tried to log in"
    await lab.it.api.patch(MACHINES, name, {"spec": {"ssh": {"hostKeys": [host.host_key]}}})
    await lab.ready(name)


async def the_key_is_refused(lab: Lab, host: Server) -> None:
    """The condition names the key and its replacement; machina offers the key once, at any number of observations."""
    stranger = keygen(lab.fleet.folder / f"{host.name}-stranger", "ed25519")
    name = await lab.register(host, key=stranger)
    said = await lab.says(name, ConditionType.PROVISIONING, "False/CredentialsRefused")
    shown = fingerprint_of(stranger.with_suffix(".pub"))
    where = f"host {host.address}:{host.port}"
    assert said == f"{where}: rejects the key {shown} of Secret {NAMESPACE}/{name} for user {USER}"
    answer = await lab.it.shell.run(f"kubectl unbounded why machine/{name}")
    assert f"ssh-copy-id -i KEY.pub {USER}@{host.address}" in answer
    assert f"(ssh-keygen -lf KEY.pub shows {shown})" in answer
    assert f"secret generic {name} " not in answer, "other Machines may share it"
    await lab.it.api.patch(MACHINES, name, {"metadata": {"annotations": {"looked-at": "again"}}})
    await asyncio.sleep(AWAY_S)
    (offered,) = [line for line in host.log.splitlines() if "Failed publickey" in line]
    assert shown in offered
    assert started(host) == []
    await lab.use_key(name, lab.fleet.key)
    await lab.ready(name)
    assert host.log.count("Failed publickey") == 1, host.log
    assert started(host) == [name]


async def the_host_goes_down_in_the_upload(lab: Lab, host: Server) -> None:
    """Its first part is on the disk by then, secrets included; the same attempt continues when the host is back."""
    unpack_half(host)
    name = await lab.register(host)

    async def half() -> bool:
        return half_arrived(host)

    await until(half, within_s=WITHIN_S)
    attempt = await lab.attempt(name)
    host.down()
    assert half_arrived(host)
    assert [*host.install.glob("*/run-*")] == []
    host.start()
    await lab.ready(name)
    assert await lab.attempt(name) == attempt
    assert started(host) == [name]
    assert [*host.install.glob("*/new-*")] == []


async def the_host_goes_down_in_the_script(lab: Lab, host: Server) -> None:
    behave(host, WAITS)
    name = await lab.register(host)
    await at_work(host)
    host.down()
    await asyncio.sleep(AWAY_S)
    behave(host, "")
    host.start()
    await lab.touch(name)
    await lab.ready(name)
    assert started(host) == [name, name]


async def the_line_breaks_in_the_script(lab: Lab, host: Server) -> None:
    behave(host, WAITS)
    name = await lab.register(host)
    await at_work(host)
    await asyncio.to_thread(host.close_sessions)
    await asyncio.sleep(AWAY_S)
    go_on(host)
    await lab.ready(name)
    assert started(host) == [name]


async def the_bastion_goes_down_in_the_script(lab: Lab, host: Server) -> None:
    assert lab.fleet.bastion is not None
    behave(host, WAITS)
    name = await lab.register(host, lab.through_the_bastion)
    await at_work(host)
    lab.fleet.bastion.down()
    await asyncio.sleep(AWAY_S)
    go_on(host)
    lab.fleet.bastion.start()
    await lab.ready(name)
    assert started(host) == [name]


async def the_secret_is_replaced_in_the_script(lab: Lab, host: Server) -> None:
    behave(host, WAITS)
    name = await lab.register(host)
    await at_work(host)
    await lab.use_key(name, keygen(lab.fleet.folder / f"{host.name}-stranger", "ed25519"))
    await asyncio.sleep(AWAY_S)
    go_on(host)
    await lab.ready(name)
    assert started(host) == [name]


async def all_is_well(lab: Lab, host: Server) -> None:
    name = await lab.register(host)
    await lab.ready(name)
    assert started(host) == [name]


Fault = Callable[[Lab, Server], Awaitable[None]]
FAULTS: Final[tuple[Fault, ...]] = (
    sudo_wants_a_password,
    the_disk_is_full,
    the_release_is_not_there,
    the_script_fails_and_says_a_lot,
    the_host_key_is_another_one,
    the_key_is_refused,
    the_host_goes_down_in_the_upload,
    the_host_goes_down_in_the_script,
    the_line_breaks_in_the_script,
    the_bastion_goes_down_in_the_script,
    the_secret_is_replaced_in_the_script,
    all_is_well,
)


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[tuple[Fleet, str]]:
    with sshd_fleet(folder / "fleet", count, bastion=True) as fleet, standin_agent(folder / "agent") as url:
        yield fleet, url


@asynccontextmanager
async def lab_on(folder: Path, fleet: Fleet, url: str, *, but: tuple[str, ...] = ()) -> AsyncIterator[Lab]:
    async with plane(folder / "data") as it, kubelets(it.api, but=but):
        yield Lab(it, fleet, url)


async def test_every_fault_is_reported_and_recovered_without_delaying_other_hosts(tmp_path: Path) -> None:
    """All at the same time: who waits for one's host does not wait for another's."""
    with hosts(tmp_path, len(FAULTS)) as (fleet, url):
        async with lab_on(tmp_path, fleet, url) as lab:
            await lab.it.shell.run(f"kubectl unbounded site init --name {SITE}")
            ends = await asyncio.gather(
                *(_timed(fault, lab, host) for fault, host in zip(FAULTS, fleet.servers, strict=True)),
                return_exceptions=True,
            )
            failed = {
                fault.__name__: end for fault, end in zip(FAULTS, ends, strict=True) if isinstance(end, BaseException)
            }
            for name, error in failed.items():
                error.add_note(f"in {name}; all that failed: {sorted(failed)}")
                raise error
            assert "Traceback" not in lab.it.running.printed
            _keep_nothing(fleet)


async def _timed(fault: Fault, lab: Lab, host: Server) -> None:
    began = time.monotonic()
    await fault(lab, host)
    print(f"{fault.__name__}: {time.monotonic() - began:.1f} s", flush=True)


def _keep_nothing(fleet: Fleet) -> None:
    """Check that no secret is left on the hosts."""
    for host in fleet.servers:
        left = host.run("grep -rlE 'BootstrapToken|PRIVATE KEY' /srv/install")
        assert left.stdout == "", (host.name, left.stdout)


async def test_killed_control_plane_resumes_each_machine(tmp_path: Path) -> None:
    """One is unreachable, one at work, one script ends without machina, one joins, and one is Ready."""
    with hosts(tmp_path, 5) as (fleet, url):
        away, working, ending, joining, _ = fleet.servers
        slow = f"{SITE}-{joining.name}"
        away.down()
        for host in (working, ending):
            behave(host, WAITS)
        async with lab_on(tmp_path, fleet, url, but=(slow,)) as lab:
            await lab.it.shell.run(f"kubectl unbounded site init --name {SITE}")
            names = [await lab.register(host) for host in fleet.servers]
            await asyncio.gather(at_work(working), at_work(ending))
            await lab.it.wait(slow, phase_is(MachinePhase.JOINING), within_s=WITHIN_S)
            await lab.ready(names[-1])
            await lab.says(names[0], ConditionType.SSH_REACHABLE, "False/ConnectionRefused")
            uids = await _nodes(lab)
            lab.it.running.signal(signal.SIGKILL)
            await lab.it.running.ended()
        go_on(ending)
        away.start()
        async with lab_on(tmp_path, fleet, url, but=(slow,)) as lab:
            await lab.ready(names[2])
            await lab.says(names[1], ConditionType.PROVISIONING, "True/InProgress")
            go_on(working)
            await make_node(lab.it.api, slow)
            for name in names:
                await lab.ready(name)
            assert [started(host) for host in fleet.servers] == [[name] for name in names]
            assert (await _nodes(lab)).items() >= uids.items()
            assert "Traceback" not in lab.it.running.printed


async def _nodes(lab: Lab) -> dict[str, str]:
    listed = json.loads(await lab.it.shell.run("kubectl get nodes -o json"))["items"]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in listed}


@pytest.mark.soak
@pytest.mark.timeout(1800, func_only=True)
async def test_a_control_plane_that_is_killed_again_and_again_starts_nothing_twice(tmp_path: Path) -> None:
    """At any moment: while it logs in, uploads, follows, writes what has become of it."""
    moments = random.Random(7)
    with hosts(tmp_path, MANY) as (fleet, url):
        for host in fleet.servers:
            behave(host, f"sleep {moments.uniform(0.1, 4.0):.1f}")
        names: list[str] = []
        for _ in range(KILLS):
            async with lab_on(tmp_path, fleet, url) as lab:
                if not names:
                    await lab.it.shell.run(f"kubectl unbounded site init --name {SITE}")
                    names = [await lab.register(host) for host in fleet.servers]
                await asyncio.sleep(moments.uniform(0.1, 3.0))
                lab.it.running.signal(signal.SIGKILL)
                await lab.it.running.ended()
        async with lab_on(tmp_path, fleet, url) as lab:
            for name in names:
                await lab.ready(name)
            assert "Traceback" not in lab.it.running.printed
        assert [started(host) for host in fleet.servers] == [[name] for name in names]
        _keep_nothing(fleet)
