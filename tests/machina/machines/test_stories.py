"""Machines over SSH from registration on, in virtual time: phases, conditions, and who is asked when."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.machina.machines.world import BASTION, FACTS, HOST, KEY, SINCE, Cluster, KnownFacts, first_of, said, shown
from tests.operations.faults import FAIR, STORM
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual
from unbounded.api.conditions import ConditionType
from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.machina.machines.settings import Settings
from unbounded.machina.ssh.model import Trouble

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
STEP = 2  # between the awaits at which a process is cut off, where not all are tried


def test_without_kubernetes_a_machine_is_ready_once_it_is_reachable() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.machine(kubernetes=None)
        async with cluster.machina():
            machine = await cluster.phase("Ready", within_s=5)
            assert machine.status.message == "Machine is reachable"
            assert shown(machine) == {
                "SSHReachable": "True/Reachable",
                "Provisioning": "Unknown/NotRun",
                "Provisioned": "Unknown/NotRun",
            }
            assert cluster.hosts[HOST].logins == []

    run_virtual(story())


def test_a_host_is_set_up_joins_and_is_ready() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.phase("Provisioning", within_s=5)
            assert machine.status.provisioning is not None
            slot = machine.status.active_operation
            assert slot is not None
            assert (slot.kind, slot.executor, slot.uid) == (
                "Provisioning",
                "machina",
                machine.status.provisioning.attempt,
            )
            machine = await cluster.phase("Joining", within_s=90)
            assert machine.status.active_operation is None
            assert shown(machine) == {
                "SSHReachable": "True/Reachable",
                "Provisioning": "False/Completed",
                "Provisioned": "True/Provisioned",
            }
            await cluster.node()
            machine = await cluster.phase("Ready", within_s=1)
            assert machine.status.message == "Node m1 joined"
        assert cluster.phases == ["Pending", "Provisioning", "Joining", "Ready"]
        installs = await cluster.installs()
        assert (len(installs.begun), installs.cleared) == (1, 1)
        sent = [command for command, _ in cluster.hosts[HOST].commands]
        assert list(dict.fromkeys(sent)) == ["begin", "tail", "clear"]  # and no question before the first one
        assert '"BootstrapToken": "abc123.0123456789abcdef"' in installs.begun[0].config.reveal()
        assert cluster.told == ["HostKeyTrusted", "Provisioned"]
        count = cluster.registry.get_sample_value
        assert count("unbounded_provisioning_attempts_total", {"result": "Completed"}) == 1
        assert count("unbounded_provisioning_seconds_sum", {"result": "Completed"}) == pytest.approx(61, abs=3)
        assert (count("unbounded_ssh_probes_total", {"result": "Reachable"}) or 0) >= 2
        assert count("unbounded_provisioning_running") == 0

    run_virtual(story())


def test_an_outage_a_lost_node_and_a_restart_are_no_reason_to_install_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina():
            await cluster.phase("Joining")
            await cluster.node()
            await cluster.phase("Ready")
            cluster.hosts[HOST].down = Trouble.TIMED_OUT
            await cluster.phase("Pending", within_s=301)
            await cluster.api.delete(NODES, "m1")
            cluster.hosts[HOST].down = None
            await cluster.phase("Joining", within_s=31)
            await cluster.edit(agent={"image": "ghcr.io/example/node:v2"})
            await asyncio.sleep(400)
        async with cluster.machina():
            await asyncio.sleep(400)
            await cluster.node()
            await cluster.phase("Ready")
            await asyncio.sleep(400)
        assert (len((await cluster.installs()).begun), len(cluster.hosts[HOST].logins)) == (1, 1)

    run_virtual(story())


def test_a_ready_machine_costs_a_probe_in_five_minutes_and_nothing_else() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina():
            await cluster.phase("Joining")
            await cluster.node()
            await cluster.phase("Ready")
            await asyncio.sleep(310)
            writes, probes, logins = cluster.api.writes, len(cluster.ssh.probes), len(cluster.hosts[HOST].logins)
            reads = cluster.secret_reads
            await asyncio.sleep(3600)
            assert cluster.api.writes == writes
            assert 11 <= len(cluster.ssh.probes) - probes <= 12
            assert len(cluster.hosts[HOST].logins) == logins
            assert cluster.secret_reads == reads

    run_virtual(story())


def test_a_refused_key_is_not_offered_again_before_the_secret_changes() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        machine = await cluster.machine()
        host = cluster.hosts[HOST]
        host.refused.add(await cluster.version())
        async with cluster.machina():
            machine = await cluster.phase("Failed")
            assert shown(machine)["Provisioning"] == "False/CredentialsRefused"
            assert machine.status.active_operation is None
            await asyncio.sleep(3600)
            assert host.offered == 1
            await cluster.key(KEY + "\n")
            await cluster.phase("Joining", within_s=5 + 62)
            assert host.offered == 2

    run_virtual(story())


def test_a_refused_key_is_offered_again_once_the_machine_is_edited_also_after_a_restart() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        host = cluster.hosts[HOST]
        host.refused.add(await cluster.version())
        async with cluster.machina():
            await cluster.phase("Failed")
        async with cluster.machina():
            await asyncio.sleep(1000)
            assert host.offered == 1
            host.refused.clear()
            await cluster.edit(ssh={"username": "root"})
            await cluster.phase("Joining", within_s=5 + 62)
        assert [login.partition("@")[0] for login in host.logins] == ["root"]

    run_virtual(story())


@pytest.mark.parametrize("missing", ["key", "token"])
def test_a_secret_that_is_missing_is_said_before_anything_is_sent_and_used_once_it_is_there(missing: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        await (cluster.token() if missing == "key" else cluster.key())
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.phase("Failed")
            reason = {"key": "SecretUnusable", "token": "TokenUnusable"}[missing]
            assert shown(machine)["Provisioning"] == f"False/{reason}"
            assert "there is no Secret" in (machine.status.message or "")
            await asyncio.sleep(300)
            assert cluster.hosts[HOST].offered == 0
            await cluster.secrets()
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(story())


def test_an_expired_token_is_said_before_anything_is_sent() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.key()
        await cluster.token(expiration="2029-12-31T23:00:00Z")
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.phase("Failed")
            assert shown(machine)["Provisioning"] == "False/TokenUnusable"
            assert "expired" in (machine.status.message or "")
            await cluster.token(expiration="2031-01-01T00:00:00Z")
            await cluster.phase("Joining", within_s=5 + 62)

    run_virtual(story())


def test_facts_that_are_missing_are_waited_for() -> None:
    async def story() -> None:
        cluster = Cluster(facts=KnownFacts(None, "ConfigMap kube-public/cluster-info does not exist"))
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.until(lambda one: "cluster-info" in (one.status.message or ""))
            assert machine.status.phase == "Pending"
            cluster.facts.facts = FACTS
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(story())


def test_a_pause_holds_back_and_its_end_is_noticed_at_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.pause()
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.until(lambda one: "paused" in (one.status.message or ""))
            assert machine.status.phase == "Pending"
            await asyncio.sleep(100)
            await cluster.api.delete(CONFIG_MAPS, "unbounded-operations", namespace=NAMESPACE)
            await cluster.phase("Provisioning", within_s=1)

    run_virtual(story())


def test_an_operation_that_has_the_machine_is_waited_for() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        slot = {"uid": "u1", "name": "off", "kind": "HostPowerOff", "executor": "metalman/lab", "since": SINCE}
        await cluster.status(activeOperation=slot)
        async with cluster.machina():
            await cluster.until(lambda one: "HostPowerOff off" in (one.status.message or ""))
            await asyncio.sleep(300)
            assert cluster.hosts[HOST].offered == 0
            await cluster.status(activeOperation=None)
            await cluster.phase("Provisioning", within_s=1)

    run_virtual(story())


def test_a_failed_install_is_told_with_its_end_and_tried_ever_more_rarely() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.takes_s, installs.status, installs.tail = 5, 1, "unpacking\nerror: no space left on device\n"
        async with cluster.machina():
            machine = await cluster.phase("Failed")
            assert shown(machine)["Provisioning"] == "False/Failed"
            assert "status 1: error: no space left on device" in (machine.status.message or "")
            assert ("Warning", "ProvisioningFailed") in [event[:2] for event in cluster.events]
            assert "unpacking" in cluster.events[-1][2]
            assert machine.status.active_operation is None
            assert installs.cleared == 1
            await asyncio.sleep(3 * 3600)
            assert 7 <= len(installs.begun) <= 16
            installs.status = 0
            machine = await cluster.phase("Joining", within_s=1900)
            assert machine.status.provisioning is not None
            assert (machine.status.provisioning.failures, machine.status.provisioning.failure) == (0, None)

    run_virtual(story())


def test_a_failed_install_is_tried_at_once_when_the_machine_is_edited() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.refuses = "sudo wants a password"
        async with cluster.machina():
            await cluster.phase("Failed")
            await asyncio.sleep(1000)
            installs.refuses = None
            await cluster.edit(ssh={"username": "root"})
            await cluster.phase("Joining", within_s=5 + 62)

    run_virtual(story())


def test_a_changed_host_key_stops_before_a_key_of_ours_is_offered_until_its_pin_is_taken_away() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        await cluster.status(ssh={"fingerprint": "SHA256:another"})
        async with cluster.machina():
            machine = await cluster.phase("Failed")
            assert shown(machine)["Provisioning"] == "False/HostKeyChanged"
            await asyncio.sleep(3600)
            assert cluster.hosts[HOST].offered == 0
            await cluster.status(ssh={"fingerprint": None})
            await cluster.phase("Joining", within_s=5 + 62)

    run_virtual(story())


def test_an_attempt_is_taken_up_by_the_next_process_and_nothing_is_begun_beside_it() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.takes_s = 600
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            await asyncio.sleep(20)
        await asyncio.sleep(300)
        async with cluster.machina():
            await cluster.until(lambda one: "step 3" in (one.status.message or ""), within_s=60)
            await cluster.phase("Joining", within_s=400)
        assert len(installs.begun) == 1

    run_virtual(story())


def test_an_attempt_that_ended_while_nobody_was_there_is_known_by_the_host() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
        await asyncio.sleep(3600)
        async with cluster.machina():
            await cluster.phase("Joining", within_s=10)
        assert len(installs.begun) == 1

    run_virtual(story())


def test_a_line_that_breaks_is_no_end_of_the_install() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        installs.takes_s, installs.loses_answer = 120, True
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            for _ in range(3):
                await asyncio.sleep(20)
                host.cut()
            await cluster.phase("Joining", within_s=300)
        assert len(installs.begun) == 1

    run_virtual(story())


def test_a_host_that_reboots_meanwhile_is_set_up_by_the_next_attempt() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            installs.reboot()
            host.down = Trouble.TIMED_OUT
            host.cut()
            await asyncio.sleep(60)
            host.down = None
            await cluster.phase("Joining", within_s=300)
            assert any("the host was rebooted" in message for _, _, message in cluster.events)
        assert len(installs.begun) == 2

    run_virtual(story())


def test_an_install_that_takes_too_long_gives_the_machine_back_and_is_waited_for_by_the_next_attempt() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.takes_s = 2100
        async with cluster.machina():
            machine = await cluster.phase("Failed", within_s=1950)
            assert shown(machine)["Provisioning"] == "False/TimedOut"
            assert machine.status.active_operation is None
            installs.takes_s = 10
            await cluster.phase("Joining", within_s=400)
        assert len(installs.begun) == 1  # the first has ended well: there was nothing to begin

    run_virtual(story())


def test_an_install_that_the_host_has_stopped_took_too_long() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.takes_s, installs.status, installs.tail = 30, 124, "downloading\n"
        async with cluster.machina():
            machine = await cluster.phase("Failed", within_s=60)
            assert shown(machine)["Provisioning"] == "False/TimedOut"
            assert "did not end in time and was stopped: downloading" in (machine.status.message or "")

    run_virtual(story())


def test_the_end_of_what_a_failed_install_said_is_kept_where_an_event_cannot_hold_all() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        installs.takes_s, installs.status, installs.tail = 5, 1, "x" * 3000 + "\nerror: " + "y" * 290 + "\nthe end"
        async with cluster.machina():
            await cluster.phase("Failed")
            _, reason, message = cluster.events[-1]
            assert reason == "ProvisioningFailed"
            assert len(message) <= 1024
            assert message.endswith("the end")

    run_virtual(story())


def test_a_host_that_says_nothing_for_long_gives_the_machine_back() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            host.down = Trouble.TIMED_OUT
            host.cut()
            machine = await cluster.until(lambda one: one.status.active_operation is None, within_s=700)
            assert shown(machine)["Provisioning"] == "False/TimedOut"
            assert machine.status.phase == "Pending"
            host.down = None
            await cluster.phase("Joining", within_s=120)
        assert len(installs.begun) == 1

    run_virtual(story())


def test_a_join_that_is_allowed_again_sets_the_host_up_again_also_after_a_reset() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        async with cluster.machina():
            await cluster.phase("Joining")
            reset = {"name": "r", "uid": "u", "kind": "AgentReset", "phase": "Complete"}
            await cluster.status(recentOperations=[reset])
            machine = await cluster.phase("Pending", within_s=1)
            assert shown(machine)["Provisioned"] == "False/Reset"
            assert "allow-join" in (machine.status.message or "")
            await asyncio.sleep(1000)
            assert len(installs.begun) == 1
            await cluster.edit(joinCounter=1)
            machine = await cluster.phase("Joining", within_s=90)
            assert shown(machine)["Provisioned"] == "True/Provisioned"
            await asyncio.sleep(1000)
        assert len(installs.begun) == 2

    run_virtual(story())


def test_ssh_that_is_taken_away_meanwhile_ends_the_attempt() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            await cluster.edit(ssh=None)
            machine = await cluster.until(lambda one: one.status.active_operation is None, within_s=2)
            assert machine.status.provisioning is not None
            assert machine.status.provisioning.ended_at is not None
            await asyncio.sleep(1)
            assert host.open == 0

    run_virtual(story())


def test_a_machine_that_is_deleted_meanwhile_gives_its_slot_back() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        await cluster.api.patch(MACHINES, "m1", {"metadata": {"finalizers": ["example.com/held"]}})
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun))
            await cluster.api.delete(MACHINES, "m1")
            await cluster.until(lambda one: one.status.active_operation is None, within_s=2)
            await asyncio.sleep(1)
            assert host.open == 0

    run_virtual(story())


def test_so_many_hosts_are_set_up_at_a_time_and_all_in_the_end() -> None:
    async def story() -> None:
        cluster = Cluster(settings=Settings(attempts_at_once=5, probe_workers=7))
        await cluster.secrets()
        names = [f"m{number}" for number in range(30)]
        for number, name in enumerate(names):
            cluster.hosts[f"10.0.1.{number}:22"] = FakeHost()
            await cluster.machine(name, host=f"10.0.1.{number}:22")
        most = 0
        async with cluster.machina():
            for _ in range(600):
                await asyncio.sleep(1)
                most = max(most, sum(host.open for host in cluster.hosts.values()))
            phases = {(await cluster.get(name)).status.phase for name in names}
        assert phases == {"Joining"}
        assert most == 5

    run_virtual(story())


def test_many_machines_whose_own_secrets_are_missing_hold_up_nobody_else() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        names = [f"w{number}" for number in range(150)]
        for number, name in enumerate(names):
            cluster.hosts[f"10.0.1.{number}:22"] = FakeHost()
            ref = {"privateKeyRef": {"name": f"key-{name}", "namespace": NAMESPACE}}
            await cluster.machine(name, host=f"10.0.1.{number}:22", ssh=ref)
        async with cluster.machina():
            for name in names[:5]:
                await cluster.until(lambda one: one.status.phase is not None, name, within_s=60)
                await asyncio.sleep(1)  # many wait for their turn to be read
                await cluster.node(name)
                await cluster.phase("Ready", name, within_s=2)
            await cluster.until(lambda one: one.status.phase == "Failed", names[-1], within_s=60)
            ref = {"privateKeyRef": {"name": "key-of-its-own", "namespace": NAMESPACE}}
            await cluster.key(name="key-of-its-own")
            await cluster.machine(ssh=ref)
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(story())


def test_a_secret_that_cannot_be_read_is_asked_for_ever_more_rarely() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        cluster.api.broken = True
        async with cluster.machina():
            await asyncio.sleep(600)
            assert 5 < cluster.secret_reads < 30
            cluster.api.broken = False
            await cluster.phase("Joining", within_s=400)

    run_virtual(story())


BASTION_SPEC = {"bastion": {"host": BASTION, "privateKeyRef": {"name": "bastion", "namespace": NAMESPACE}}}


def test_what_is_wrong_at_the_bastion_shows_on_reachability() -> None:
    async def story() -> None:
        cluster = Cluster()
        bastion = cluster.hosts[BASTION] = FakeHost(fingerprint="SHA256:bastion")
        await cluster.secrets()
        await cluster.machine(ssh=BASTION_SPEC)
        async with cluster.machina():
            machine = await cluster.until(lambda one: shown(one).get("SSHReachable") == "False/SecretUnusable")
            assert machine.status.phase == "Pending"
            await cluster.key(name="bastion")
            bastion.refused.add(await cluster.version("bastion"))
            await cluster.until(lambda one: shown(one).get("SSHReachable") == "False/CredentialsRefused", within_s=10)
            await asyncio.sleep(600)
            assert bastion.offered == 1
            await cluster.key(KEY + "\n", name="bastion")
            machine = await cluster.phase("Joining", within_s=5 + 62)
            assert machine.status.ssh is not None
            assert (machine.status.ssh.fingerprint, machine.status.ssh.bastion_fingerprint) == (
                "SHA256:made-up",
                "SHA256:bastion",
            )

    run_virtual(story())


def test_a_host_that_has_joined_by_itself_is_left_alone() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.node()
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.phase("Ready", within_s=5)
            assert shown(machine)["Provisioned"] == "Unknown/NotRun"
            await cluster.api.patch(NODES, "m1", {"status": {"conditions": []}}, subresource="status")
            await asyncio.sleep(600)
            assert cluster.hosts[HOST].offered == 0

    run_virtual(story())


def test_a_host_that_gets_its_system_from_an_image_is_not_installed_over() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine(pxe={"image": "i"})
        await cluster.status(operations={"repaveCounter": 1, "rebootCounter": 1})
        async with cluster.machina():
            await cluster.until(
                lambda one: "image" in said(one, ConditionType.PROVISIONING).message if one.status.conditions else False
            )
            await asyncio.sleep(600)
            assert cluster.hosts[HOST].offered == 0

    run_virtual(story())


def _awaits() -> int:
    """How many awaits machina makes from a new Machine to one that has only to join."""

    async def story() -> int:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina() as running:
            await cluster.phase("Joining")
            return running.life.awaits

    return run_virtual(story())


def test_a_process_is_cut_off_at_every_await() -> None:
    awaits = _awaits()
    assert awaits > 30
    for crash_at in range(0 if SOAK else awaits % STEP, awaits + 1, 1 if SOAK else STEP):

        async def story(crash_at: int = crash_at) -> None:
            cluster = Cluster(chance=random.Random(crash_at))
            await cluster.secrets()
            await cluster.machine()
            first = cluster.process(crash_at=crash_at)
            await first_of(first.life.dead.wait(), cluster.phase("Joining", within_s=900))
            await first.stop()
            await asyncio.sleep(crash_at % 3 * 40)
            async with cluster.machina():
                machine = await cluster.phase("Joining", within_s=200)
                await asyncio.sleep(5)
            assert len((await cluster.installs()).begun) == 1, crash_at
            assert machine.status.active_operation is None, crash_at

        run_virtual(story())


def _storm(seed: int) -> None:
    """Bad weather, crashes, hosts that go and come, edits: in the end the host is set up, and never twice at a time."""

    async def story() -> None:
        chance = random.Random(seed)
        cluster = Cluster(chance=chance, weather=STORM)
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        installs.takes_s = chance.choice([1, 30, 200])
        installs.loses_answer = chance.random() < 0.5
        for _ in range(chance.randrange(4)):
            running = cluster.process(crash_at=chance.randrange(150))
            for _ in range(chance.randrange(4)):
                await first_of(running.life.dead.wait(), asyncio.sleep(chance.uniform(1, 60)))
                host.down = chance.choice([None, None, Trouble.TIMED_OUT])
                if chance.random() < 0.5:
                    host.cut()
            await running.stop()
            await asyncio.sleep(chance.uniform(0, 60))
        host.down, cluster.weather = None, FAIR
        async with cluster.machina():
            machine = await cluster.phase("Joining", within_s=3600)
            await asyncio.sleep(700)
            assert (await cluster.get()).status.phase == "Joining"
        assert len(installs.begun) == 1, [install.attempt for install in installs.begun]
        assert machine.status.active_operation is None
        assert host.open == 0

    run_virtual(story())


@pytest.mark.parametrize("batch", range(4))
def test_whatever_the_weather_a_host_is_set_up_once(batch: int) -> None:
    count = 500 if SOAK else 10
    for seed in range(batch * count, (batch + 1) * count):
        try:
            _storm(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
