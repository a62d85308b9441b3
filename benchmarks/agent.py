"""The agent on a real host: `python -m benchmarks.agent [--quick]`.

The host has a real systemd, the packaged agent and a control plane. A stand-in replaces kubelet: it registers the Node
and renews the Lease.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.agent_probe import INSIDE, PROBE, Probe
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from tests.support.agent_release import CRASHES, AgentRelease, agent_release, release_like
from tests.support.hosts import agent_tools, booted, fast_disk, until
from tests.support.hosts.agent import COMMAND, AgentHost
from tests.support.hosts.images import images_on
from tests.support.hosts.mirror import mirror_on
from tests.support.hosts.plane import control_plane
from tests.support.hosts.tools import missing
from tests.support.qemu import segment
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.api.core import LEASES
from unbounded.api.operation import MACHINE_OPERATIONS, OperationPhase
from unbounded.kube.client import HttpApi

AMOUNT: Final = "one host with a node, idle for {idle_s:g} s, {reboots:g} reboots of the node beside as many bare ones"
LIMITS: Final[Mapping[str, Limit]] = {
    "node_reboot_vs_bare_sequence": Limit(
        "NodeReboot, over the bare machinectl and systemctl commands and waiting for the Lease", most=1.25, aim=1.1
    ),
    "start_from_cache_vs_io": Limit("a start with all artifacts on the disk, over unpacking and copying them"),
    "upgrade_watch_gap_s": Limit("without a watch during AgentUpgrade, s", aim=3.0),
    "rollback_s": Limit("from the request of a crashing version until the former one is back, s", most=90.0),
    "version_s": Limit("unbounded-agent version, s", most=0.3),
    "daemon_start_s": Limit("from the start of the daemon until it watches, s"),
    "daemon_pss_mib": Limit("memory of the idle daemon (PSS), MiB", most=70.0),
    "daemon_idle_cpu": Limit("share of a CPU that the idle daemon takes", most=0.01),
    "idle_bytes_sent": Limit("bytes that the idle daemon sends to the API server in that time"),
}
KUBELET_UNITS: Final = ("kubelet.service", "containerd.service")
BACK_S: Final = 150.0


@dataclass(frozen=True)
class Size:
    """Amounts of one run.

    Args:
        window_s: the seconds that a new version has to stay healthy; 0 for the agent's default.
    """

    idle_s: float
    reboots: int
    versions: int
    window_s: int


FULL: Final = Size(idle_s=60.0, reboots=3, versions=7, window_s=0)
QUICK: Final = Size(idle_s=5.0, reboots=1, versions=3, window_s=3)


class Bench:
    """Measurements on one host that is a node."""

    def __init__(self, agent: AgentHost, api: HttpApi, release: AgentRelease, folder: Path, size: Size) -> None:
        self.agent, self.api, self.release, self.folder, self.size = agent, api, release, folder, size
        self.probe = Probe(agent.host)

    async def run(self) -> Measured:
        figures: dict[str, float] = {"idle_s": self.size.idle_s, "reboots": float(self.size.reboots)}
        ratios: dict[str, float] = {}
        print_progress("a start from the cache")
        ratios["start_from_cache_vs_io"] = await self._start_from_cache(figures)
        print_progress("version and daemon")
        figures["version_s"] = await self._version_s()
        figures["daemon_start_s"] = await self._daemon_start_s()
        print_progress(f"idle for {self.size.idle_s:g} s")
        figures |= await self._idle()
        print_progress("reboots of the node")
        ratios["node_reboot_vs_bare_sequence"] = await self._reboots(figures)
        print_progress("upgrades")
        figures["upgrade_watch_gap_s"] = await self._upgrade_gap_s()
        figures["rollback_s"] = await self._rollback_s()
        return Measured(figures, ratios)

    # Start

    async def _start_from_cache(self, figures: dict[str, float]) -> float:
        """Delete the slot, and time the start that creates it; return the ratio to the disk's part of the work."""
        host = self.agent.host
        await host.run("systemctl", "stop", DAEMON_UNIT, "systemd-nspawn@kube1.service")
        forget = "rm -rf /var/lib/machines/kube1 /etc/unbounded/agent/kube1-applied-config.json*"
        await host.run("sh", "-c", forget)
        io_s = await self._io_s()
        began = time.monotonic()
        await self.agent.start()
        took_s = time.monotonic() - began
        await self.agent.plane.ready(self.agent.machine)
        figures["start_from_cache_s"], figures["start_io_s"] = took_s, io_s
        return took_s / io_s

    async def _io_s(self) -> float:
        """Return the seconds to unpack the image and the archives and to copy the programs, without other work."""
        tools, place = self.agent.host.tools, self.agent.host.outside("/var/lib/machines/.io")
        (place / "bin").mkdir(parents=True)
        bin_ = str(place / "bin")
        commands = [
            ("tar", "--zstd", "-xf", str(tools.node_layer), "-C", str(place)),
            ("tar", "-xzf", str(tools.artifacts / "containerd.tar.gz"), "-C", bin_),
            ("tar", "-xzf", str(tools.artifacts / "cni.tgz"), "-C", bin_),
            ("cp", str(tools.artifacts / "runc"), bin_),
            ("sync", "-f", bin_),
        ]
        began = time.monotonic()
        for command in commands:
            process = await asyncio.create_subprocess_exec(*command)
            assert await process.wait() == 0, command
        took_s = time.monotonic() - began
        shutil.rmtree(place)
        return took_s

    # The program

    async def _version_s(self) -> float:
        return statistics.median([await self.probe.seconds_of(COMMAND, "version") for _ in range(self.size.versions)])

    async def _daemon_start_s(self) -> float:
        began = time.monotonic()
        await self.agent.host.run("systemctl", "restart", DAEMON_UNIT)
        return time.monotonic() - began

    async def _idle(self) -> dict[str, float]:
        await asyncio.sleep(2.0)  # the work after a start
        before = await self.probe.usage(DAEMON_UNIT)
        await asyncio.sleep(self.size.idle_s)
        after = await self.probe.usage(DAEMON_UNIT)
        return {
            "daemon_pss_mib": after["pss_kib"] / 1024,
            "daemon_idle_cpu": (after["cpu_s"] - before["cpu_s"]) / self.size.idle_s,
            "idle_bytes_sent": after["sent"] - before["sent"],
        }

    # Operations

    async def _reboots(self, figures: dict[str, float]) -> float:
        ours, bare = [], []
        for count in range(self.size.reboots):
            bare.append(await self._timed(self._bare_sequence()))
            ours.append(await self._timed(self._node_reboot(f"reboot-{count}")))
        figures["node_reboot_s"], figures["bare_sequence_s"] = statistics.median(ours), statistics.median(bare)
        return figures["node_reboot_s"] / figures["bare_sequence_s"]

    async def _timed(self, work: Any) -> float:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await work
        return time.monotonic() - began

    async def _bare_sequence(self) -> None:
        """Run the commands that an administrator would type, without checks between them."""
        lease, host = await self._renewed(), self.agent.host
        (slot,) = await self.agent.slots()
        lines = [f"systemctl --machine={slot} stop {unit}" for unit in KUBELET_UNITS]
        lines += [f"machinectl poweroff {slot}", f"while machinectl show {slot} >/dev/null 2>&1; do sleep 0.05; done"]
        lines += [
            f"while systemctl is-active -q systemd-nspawn@{slot}; do sleep 0.05; done",
            f"machinectl start {slot}",
        ]
        lines += [f"until systemctl --machine={slot} list-jobs >/dev/null 2>&1; do sleep 0.05; done"]
        lines += [f"systemctl --machine={slot} start {unit}" for unit in reversed(KUBELET_UNITS)]
        await host.run("sh", "-c", "; ".join(lines))
        await self._lease_after(lease)

    async def _node_reboot(self, name: str) -> None:
        """Reboot the node through the API; the start of kubectl would distort the figure."""
        spec = {"machineRef": self.agent.machine, "operationKind": "NodeReboot"}
        await self.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})

        async def complete() -> bool:
            operation = await self.api.get(MACHINE_OPERATIONS, name)
            assert operation.status.phase != OperationPhase.FAILED, operation.status
            return operation.status.phase == OperationPhase.COMPLETE

        await until(complete, within_s=BACK_S)

    async def _renewed(self) -> str:
        lease = await self.api.get(LEASES.raw(), self.agent.machine, namespace="kube-node-lease")
        return str(lease["spec"]["renewTime"])

    async def _lease_after(self, before: str) -> None:
        async def newer() -> bool:
            return await self._renewed() > before

        await until(newer, within_s=BACK_S)

    async def _upgrade_gap_s(self) -> float:
        better = release_like(self.release, self.folder / "7.0.0", version="7.0.0")
        url = self.agent.mirror.add("/7.0.0.tar.gz", better.archive)
        async with self.probe.watching(DAEMON_UNIT) as gaps:
            await self.agent.plane.operate("upgrade", self.agent.machine, "AgentUpgrade", downloadURL=url)
            ended = await self.agent.plane.ended("upgrade", within_s=BACK_S)
            assert ended["status"]["phase"] == "Complete", ended["status"]
        return max(await gaps())

    async def _rollback_s(self) -> float:
        bad = release_like(self.release, self.folder / "8.0.0", version="8.0.0", on_daemon=CRASHES)
        url = self.agent.mirror.add("/8.0.0.tar.gz", bad.archive)
        began = time.monotonic()
        await self.agent.plane.operate("crashes", self.agent.machine, "AgentUpgrade", downloadURL=url)
        ended = await self.agent.plane.ended("crashes", within_s=BACK_S)
        assert ended["status"]["reason"] == "DaemonFailed", ended["status"]
        assert await self.agent.agent_version() == "7.0.0"
        return time.monotonic() - began


@asynccontextmanager
async def _node(stack: ExitStack, folder: Path, release: AgentRelease, size: Size) -> AsyncIterator[AgentHost]:
    """Boot a host that joins."""
    tools = agent_tools()
    net = stack.enter_context(segment())
    disk = stack.enter_context(fast_disk(folder / "disk"))
    mirror = stack.enter_context(mirror_on(net.address, tools))
    images = stack.enter_context(images_on(net.address, tools, folder / "images"))
    plane = stack.enter_context(control_plane(folder / "plane", net.address))
    mirror.add_kubernetes("1.34.0")
    upgrade = {"AllowHTTP": True, "HealthWindowSeconds": size.window_s}
    async with booted(tools, net, disk, "bench", "10.88.0.11") as host:
        host.put(INSIDE, PROBE.read_bytes())
        agent = AgentHost(host, plane, mirror, images, "bench", more={"Upgrade": upgrade})
        await agent.joined(release)
        yield agent


async def run(quick: bool) -> Measured:
    lacking = missing()
    if lacking is not None:
        raise SystemExit(f"hosts need {lacking}")
    release = agent_release()
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        async with _node(stack, Path(folder), release, size) as agent, agent.plane.api() as api:
            return await Bench(agent, api, release, Path(folder), size).run()


if __name__ == "__main__":
    run_benchmark("agent", run)
