"""A host moves to another API server: the daemon's real parts, two embedded servers, and the migration between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.agent.daemon.joining import approving, make_token
from tests.agent.daemon.light import LightHost
from tests.cli.deployed import deployed, running
from tests.support.waiting import eventually
from unbounded.agent.cluster_access import ClusterAccess, access_of_config, goal_with
from unbounded.agent.daemon import daemon
from unbounded.agent.daemon.daemon import DaemonParts
from unbounded.agent.daemon.identity import connected, join
from unbounded.agent.daemon.server_migration import ServerMigration, finish_migration
from unbounded.agent.interfaces import Units
from unbounded.agent.lock import host_lock
from unbounded.agent.model import BuildRecord, CertificateAccess, Slot
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.settings import require_stored_config
from unbounded.api.core import CERTIFICATE_REQUESTS, NODES
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_SUCCESSOR
from unbounded.cli.migrate import steps
from unbounded.cli.migrate.hand_over import hand_over, relay
from unbounded.cli.migrate.migration_record import MarkerFile
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.csr import IdentityFiles, certificate
from unbounded.join.migration_successor import Successor, encoded, successor_agent, successor_in, successor_kubelet
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.process import Runtime, running_caches
from unbounded_apiserver.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@dataclass
class Kubelets:
    """The part of a host's slots that moves, on a simulated host."""

    host: LightHost
    moves: list[tuple[str, str, bool]] = field(default_factory=list)

    def applied(self, slot: Slot) -> BuildRecord | None:
        return self.host.host.applied if slot is Slot.KUBE1 else None

    async def follow_access(self, slot: Slot, access: ClusterAccess) -> None:
        applied = self.host.host.applied
        self.host.host.applied = msgspec.structs.replace(applied, goal=goal_with(applied.goal, access))

    async def succeed(
        self, slot: Slot, access: ClusterAccess, kubelet: CertificateAccess | None, node_uid: str
    ) -> None:
        await self.follow_access(slot, access)
        self.host.host.applied = msgspec.structs.replace(self.host.host.applied, node_uid=node_uid)
        self.moves.append((access.server, node_uid, kubelet is not None))


class Service:
    """The part of systemd that restarts a daemon."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()

    async def reset_failed(self, _name: str) -> None:
        pass

    async def restart(self, _name: str, *, block: bool) -> None:
        assert not block
        self.wanted.set()


@dataclass
class Move:
    """A host that has joined the source, and an empty target."""

    host: LightHost
    kubelets: Kubelets
    here: HttpApi
    there: HttpApi
    target: ApiServer
    source: MigrationSource

    def parts(self, service: Service) -> DaemonParts:
        return replace(self.host.parts(), units=cast("Units", service), access=self.kubelets)

    async def daemon(self) -> None:
        """Run the service: a daemon that is restarted as often as it requests."""
        while True:
            service = Service()
            run = asyncio.create_task(daemon.run(self.parts(service)))
            again = asyncio.create_task(service.wanted.wait())
            try:
                await asyncio.wait((run, again), return_when=asyncio.FIRST_COMPLETED)
                assert not run.done(), run.exception()
            finally:
                run.cancel()
                again.cancel()
                await asyncio.wait((run, again))


@pytest.fixture
async def move(tmp_path: Path) -> AsyncIterator[Move]:
    async with deployed(tmp_path / "source") as (here, admin), running(tmp_path / "target") as (there, _):
        await make_token(admin)
        host = LightHost(tmp_path / "host", here)
        async with approving(admin):
            await join(host.paths, host.config)
        await host.become_node(admin)
        async with (
            HttpApi(from_kubeconfig(here.kubeconfig_path)) as here_api,
            HttpApi(from_kubeconfig(there.kubeconfig_path)) as there_api,
        ):
            source = MigrationSource(here_api, MarkerFile(here.data_dir), "test")
            yield Move(host, Kubelets(host), here_api, there_api, there, source)


@asynccontextmanager
async def beside(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def quiet(_text: str) -> None:
    pass


async def migrated(it: Move) -> None:
    target = MigrationTarget(it.there)
    planned = await steps.plan(it.source, target)
    assert planned.obstacles == ()
    await steps.migrate(it.source, target, planned, quiet)


async def successor_of(it: Move, **changes: Any) -> Successor:
    access = await MigrationTarget(it.there).access()
    machine, node = await it.there.get(MACHINES, "m1"), await it.there.get(NODES, "m1")
    right = Successor(
        server=access.server,
        ca_pem=access.ca_pem,
        machine_uid=machine.metadata.uid,
        node_uid=node.metadata.uid,
    )
    return msgspec.structs.replace(right, **changes)


async def test_an_agent_moves_with_its_node_and_nothing_is_recreated(move: Move) -> None:
    was = move.host.host.applied.node_uid

    async def reported() -> bool:
        return (await move.here.get(MACHINES, "m1")).status.agent is not None

    async with beside(move.daemon()):
        await eventually(reported)
        acts = len(move.host.host.acts)
        await migrated(move)
        async with asyncio.timeout(60):
            await hand_over(move.source, MigrationTarget(move.there), quiet)
        node = await move.there.get(NODES, "m1")
        assert move.host.host.applied.node_uid == node.metadata.uid != was
        assert move.kubelets.moves == [(move.target.url, node.metadata.uid, True)]
        await asyncio.sleep(3)  # long enough for a recreation to begin
        assert (await move.there.get(MACHINES, "m1")).status.active_operation is None
        assert len(move.host.host.acts) == acts
    config = require_stored_config(move.host.paths)
    assert config.kubelet.api_server == move.target.url
    async with connected(move.host.paths, config) as api:
        assert (await api.get(MACHINES, "m1")).name == "m1"
    assert not move.host.paths.succession.exists()
    assert not list(move.host.paths.state.glob("successor-*"))


async def test_cluster_info_of_another_server_is_ignored(move: Move) -> None:
    """The address and CA of the target, published in a place that the agent does not read for its Machine."""
    await migrated(move)
    config = require_stored_config(move.host.paths)
    await publish_cluster_info(move.there, move.target.url, (move.target.data_dir / "pki" / "ca.crt").read_bytes())
    async with beside(move.daemon()):
        await asyncio.sleep(5)
    assert require_stored_config(move.host.paths) == config


@asynccontextmanager
async def succession(it: Move) -> AsyncIterator[tuple[ServerMigration, list[str]]]:
    """As the daemon has it, with the agent's own rights."""
    restarts: list[str] = []

    async def restart() -> None:
        restarts.append("restart")

    def lock(who: str) -> Any:
        return host_lock(it.host.paths, who)

    async with connected(it.host.paths, it.host.config) as api:
        machines = Cache(api, MACHINES, fields="metadata.name=m1")
        async with running_caches(Runtime(api), machines):
            paths, config = it.host.paths, it.host.config
            status = RecreationStatusWriter(api, "m1", now=utc_now)
            yield ServerMigration(
                api, paths, config, machines, status, lock=lock, held_back=lambda: "", restart=restart
            ), restarts  # fmt: skip


@asynccontextmanager
async def relaying(it: Move) -> AsyncIterator[None]:
    async def forever() -> None:
        while True:
            await relay(it.here, it.there)
            await asyncio.sleep(0.1)

    async with beside(forever()):
        yield


async def test_a_server_that_cannot_prove_itself_is_not_followed(move: Move, tmp_path: Path) -> None:
    await migrated(move)
    before = require_stored_config(move.host.paths)
    async with succession(move) as (moving, restarts), relaying(move), running(tmp_path / "impostor") as (other, _):
        ca = (other.data_dir / "pki" / "ca.crt").read_text()
        with pytest.raises(Failure, match="certificate verify failed"):
            await moving.follow(await successor_of(move, ca_pem=ca))
        with pytest.raises(Failure):  # another cluster does not take the target's certificate
            await moving.follow(await successor_of(move, ca_pem=ca, server=other.url))
        with pytest.raises(Rejected, match="it is another cluster"):
            await moving.follow(await successor_of(move, machine_uid="another"))
        assert restarts == []
    assert require_stored_config(move.host.paths) == before
    assert not move.host.paths.succession.exists()


async def test_refused_succession_is_reported_to_the_waiting_command(move: Move) -> None:
    await migrated(move)
    told: list[str] = []

    async def said() -> bool:
        return any("m1: https://" in one and "it is another cluster" in one for one in told)

    async with beside(move.daemon()):
        wrong = encoded(await successor_of(move, machine_uid="another"))
        agent = {"status": {"agent": {"version": "1.2.3"}}}
        await move.here.patch(MACHINES, "m1", agent, subresource="status")
        await move.here.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_SUCCESSOR: wrong}}})
        async with relaying(move):
            await eventually(lambda: refused(move))
        async with beside(hand_over(move.source, MigrationTarget(move.there), told.append)):
            await eventually(said)


async def refused(it: Move) -> bool:
    machine = await it.here.get(MACHINES, "m1")
    return any(one.type == "ClusterAccessCurrent" and one.status == "False" for one in machine.status.conditions)


async def test_cut_off_anywhere_the_move_is_completed_or_forgotten(move: Move) -> None:
    await migrated(move)
    paths, successor = move.host.paths, await successor_of(move)
    old = require_stored_config(paths)

    def lock(who: str) -> Any:
        return host_lock(paths, who)

    async with succession(move) as (moving, restarts), relaying(move):
        await moving.follow(successor)
        assert restarts == ["restart"]
    new = require_stored_config(paths)
    assert access_of_config(new).server == move.target.url
    saved = paths.succession.read_bytes()
    await finish_migration(paths, old, move.kubelets, lock)  # the configuration was not written
    assert (move.kubelets.moves, paths.succession.exists()) == ([], False)
    paths.succession.write_bytes(saved)
    with pytest.raises(Rejected):  # nor can certificates that are gone be made up
        await finish_migration(paths, new, move.kubelets, lock)
    async with succession(move) as (moving, _), relaying(move):
        await moving.follow(successor)

    class Failing(Kubelets):
        async def succeed(self, *_args: Any) -> None:
            raise Rejected("kubelet does not start")

    with pytest.raises(Rejected, match="kubelet does not start"):
        await finish_migration(paths, new, Failing(move.host), lock)
    await finish_migration(paths, new, move.kubelets, lock)
    await finish_migration(paths, new, move.kubelets, lock)
    assert [uid for _, uid, _ in move.kubelets.moves] == [successor.node_uid]


async def test_agent_gets_no_certificate_for_another_machine(move: Move, tmp_path: Path) -> None:
    await migrated(move)
    async with connected(move.host.paths, move.host.config) as api, relaying(move):
        for wanted in (successor_agent("m2"), successor_kubelet("m2")):
            with pytest.raises(Rejected, match="requests a certificate of m2"):
                await certificate(api, IdentityFiles(tmp_path / "keys", wanted), wanted, within_s=20)
    assert (await move.there.list(CERTIFICATE_REQUESTS)).items == ()
    async with relaying(move):
        with pytest.raises(Rejected, match="is not an agent with its own certificate"):
            await certificate(move.here, IdentityFiles(tmp_path / "more", successor_agent("m1")), successor_agent("m1"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server": "http://api.example.com"}, "server: .* is not an address of an API server, such as https://"),
        ({"server": "nonsense://"}, "server"),
        ({"machineUid": ""}, "machineUid"),
        ({"caPem": 7}, "caPem"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused(changes: dict[str, Any], words: str) -> None:
    right = Successor(server="https://api.example.com:6443", ca_pem="PEM", machine_uid="u")
    body = msgspec.json.decode(encoded(right)) | changes
    assert successor_in(encoded(right)) == right
    with pytest.raises(Rejected, match=words):
        successor_in(msgspec.json.encode(body).decode())
