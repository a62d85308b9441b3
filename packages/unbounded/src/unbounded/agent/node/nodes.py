"""The slots of this host: the port `Nodes`."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, closing
from typing import Final

from cryptography import x509
from msgspec.structs import replace

from unbounded.agent.cluster_access import ClusterAccess, goal_with, kubeconfig_with, kubelet_config_with
from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.host import Systemctl
from unbounded.agent.interfaces import Commands, OnProgress, Units
from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.agent.node import containerd, gpus, kubelet, manual_changes, pull_secrets, slot_files
from unbounded.agent.node.devices import DeviceChanges, find_devices, sync_devices
from unbounded.agent.node.files import HostInputs
from unbounded.agent.node.gpus import CdiResult, cdi_result, write_cdi_result
from unbounded.agent.node.kubelet import kubelet_problem, last_error_line
from unbounded.agent.node.machine_runner import MachineLimits, MachineRunner
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.node.settings import changed_files, require_usable
from unbounded.agent.node.slot_builder import SlotBuilder
from unbounded.agent.node_spec import ARCHITECTURES
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps import kernel
from unbounded.api.configuration import NodeSettings
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.fetch.system_tree import SystemTree, sync_file_system
from unbounded.fetch.web import Trust
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.logs import Log, SecretStr
from unbounded.kube.tasks import gather, run_in_thread

log = Log("agent")

_GPU_S: Final = 60.0


class HostNodes:
    """The slots of this host.

    Args:
        units: the host's service manager.
        inside: that of a slot's machine.
        arch: amd64, arm64; None for this host's own.
        trust: authorities of the mirrors and registries.
        health: returns why kubelet is not healthy.
    """

    def __init__(
        self,
        paths: HostPaths,
        commands: Commands,
        units: Units,
        *,
        inside: Callable[[Slot], Units] | None = None,
        arch: str = "",
        trust: Trust | None = None,
        limits: MachineLimits | None = None,
        now: WallClock = utc_now,
        health: Callable[[], Awaitable[str]] = kubelet_problem,
    ) -> None:
        self._paths = paths
        self._commands = commands
        self._units = units
        self._arch = arch or ARCHITECTURES.get(platform.machine(), platform.machine())
        self._now = now
        self._health = health
        self._host_inputs = HostInputs(paths)
        self._builder = SlotBuilder(paths, commands, self._host_inputs, arch=self._arch, trust=trust)
        managers = inside or (lambda slot: Systemctl(commands, machine=slot))
        self._durations = Durations(paths)
        self._running = MachineRunner(paths, commands, units, managers, limits or MachineLimits(), self._durations)

    async def observe(self, slot: Slot) -> SlotFacts:
        """Return the observed state of a slot. Raises Rejected as `applied` does."""
        applied = self.applied(slot)
        facts = SlotFacts(slot, exists=_filled(self._paths, slot), applied=applied)
        if not await self._running.active(slot):
            return facts
        boot_id, kubelet_up, containerd_up = await asyncio.gather(
            self._running.boot_id(slot),
            self._running.service_active(slot, kubelet.UNIT),
            self._running.service_active(slot, containerd.UNIT),
        )
        if not boot_id:
            return facts
        return dataclasses.replace(facts, running=True, boot_id=boot_id, kubelet=kubelet_up, containerd=containerd_up)

    async def build(self, slot: Slot, spec: NodeGoal, access: KubeletAccess, report: OnProgress) -> None:
        await self.remove(slot)
        async with self._measured(TimedWork.BUILD):
            await self._builder.build(slot, spec, access, report)
        await self._prepare(slot)
        log.info("slot built", slot=slot, version=spec.kubernetes_version, image=spec.image)

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        await self._builder.fetch(spec, report)

    async def start(self, slot: Slot) -> None:
        applied = self._whole(slot, "it is not started; build it first")
        was_up = await self._running.active(slot)
        async with self._measured(TimedWork.START, whole=not was_up):
            await self._prepare(slot)
            await run_in_thread(kernel.apply_configured, self._paths, applied.goal.settings.sysctl or {})
            await self._running.start(slot)
            await self._show_devices(slot)
            await self._describe_gpus(slot)
            services = (containerd.UNIT, kubelet.UNIT)  # kubelet's unit is ordered after the other
            await gather(self._running.start_service(slot, unit) for unit in services)
        await run_in_thread(manual_changes.record, self._paths, slot)

    async def stop_services(self, slot: Slot) -> None:
        await self._running.stop_services(slot)

    async def stop(self, slot: Slot) -> None:
        await self._running.stop(slot)

    def _measured(self, work: TimedWork, *, whole: bool = True) -> AbstractAsyncContextManager[None]:
        return self._durations.measured(work, self._durations.limit(work), whole=whole)

    async def remove(self, slot: Slot) -> None:
        if await self._running.active(slot):
            raise Transient(f"{slot}: the machine is running, so its files cannot be removed; stop it first")
        await asyncio.to_thread(slot_files.remove_build_record, self._paths, slot)
        await asyncio.to_thread(manual_changes.forget, self._paths, slot)
        await slot_files.remove_trees(self._paths, self._commands, slot)
        if await asyncio.to_thread(slot_files.remove_settings, self._paths, slot):
            await self._units.disable(unit_of(slot))
            await self._units.reload()

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        content = await asyncio.to_thread(self._certificate, slot)
        if content is None or not _good(content, self._now):
            return None
        return CertificateAccess(SecretStr(content))

    def _certificate(self, slot: Slot) -> str | None:
        if not self._paths.rootfs(slot).is_dir():
            return None
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            content = tree.read(kubelet.CERTIFICATE)
        return content.decode(errors="replace") if content else None

    async def registered(self, slot: Slot, node_uid: str) -> None:
        applied = self._whole(slot, "it registered no Node")
        if applied.node_uid != node_uid:
            await run_in_thread(slot_files.write_build_record, self._paths, slot, replace(applied, node_uid=node_uid))

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        spec = self._whole(slot, "it has no kubelet").goal
        await self._running.stop_services(slot)
        files = kubelet.credential_files(spec, access)
        await run_in_thread(self._put, slot, files, kubelet.links(access))
        log.info("kubelet has a new certificate", slot=slot)

    async def kubelet_problem(self, slot: Slot) -> str:
        if await self._running.service_active(slot, kubelet.UNIT):
            trouble = await self._health()
        else:
            trouble = f"kubelet in {slot} does not stay up"
        words = last_error_line(await self._running.journal(slot, kubelet.UNIT)) if trouble else ""
        return f"{trouble}; its last output: {words}" if words else trouble

    async def sandbox_problem(self, slot: Slot) -> str:
        config = containerd.pod_config(str(uuid.uuid4()))
        limit_s = containerd.RUN_S + containerd.MARGIN_S
        try:
            ran = await self._running.execute_inside(
                slot, *containerd.run_command(), stdin=config, timeout_s=limit_s, check=False
            )
        except Failure as failure:
            return f"no Pod sandbox starts in {slot}: {failure}"
        if not ran.ok:
            return f"no Pod sandbox starts in {slot}: {containerd.crictl_error(ran.stderr)}"
        remove = containerd.remove_command(ran.stdout.strip())
        try:
            await self._running.run_inside(slot, *remove, timeout_s=containerd.REMOVE_S)
        except Failure as failure:  # kubelet removes sandboxes of unknown Pods
            log.warning("cannot remove the test Pod sandbox", error=failure, slot=slot)
        return ""

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        applied = self._whole(slot, "its labels cannot be changed")
        spec = replace(applied.goal, labels=dict(sorted(labels.items())), taints=taints)
        if spec == applied.goal:
            return
        await run_in_thread(self._put, slot, (kubelet.node_drop_in(spec),), {})
        await self._running.reread(slot)
        await run_in_thread(slot_files.write_build_record, self._paths, slot, replace(applied, goal=spec))

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        applied = self._whole(slot, "its settings cannot be changed")
        spec = replace(applied.goal, settings=settings)
        if spec == applied.goal and not pull_secrets.secret_names(settings):
            return
        require_usable(settings)
        await run_in_thread(self._put_settings, slot, applied.goal, spec)
        await run_in_thread(slot_files.write_build_record, self._paths, slot, replace(applied, goal=spec))
        log.info("settings of slot changed", slot=slot)

    def _put_settings(self, slot: Slot, before: NodeGoal, spec: NodeGoal) -> None:
        desired, gone = changed_files(
            before, spec, self._host_inputs.address(spec), pull_secrets.stored_response(self._paths)
        )
        document = kubelet.configuration(spec, self._host_inputs.resolver().pods)
        own = (kubelet.SERVICE_FILE, kubelet.configuration_file(document))
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            for path in gone:
                tree.unlink(path)
        self._put(slot, (*desired, *own), {})
        manual_changes.record_again(self._paths, slot, gone)

    def logins(self, slot: Slot) -> bytes:
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            return tree.read(pull_secrets.RESPONSE) or b""

    async def follow_access(self, slot: Slot, access: ClusterAccess) -> None:
        """Give kubelet in a complete slot this API server, CA and DNS server; restart it where it runs."""
        applied = self._whole(slot, "its kubelet cannot follow the cluster's CA")
        spec = goal_with(applied.goal, access)
        await run_in_thread(self._put, slot, await asyncio.to_thread(self._access_files, slot, access), {})
        if await self._running.service_active(slot, kubelet.UNIT):
            await self._running.restart_service(slot, kubelet.UNIT)
        await run_in_thread(slot_files.write_build_record, self._paths, slot, replace(applied, goal=spec))
        log.info("kubelet follows the cluster's address and CA", slot=slot, access=str(access))

    async def succeed(
        self, slot: Slot, access: ClusterAccess, kubelet_access: CertificateAccess | None, node_uid: str
    ) -> None:
        """Move kubelet in a complete slot to another cluster, where its Node has this UID.

        Args:
            kubelet_access: its certificate there; None where a program supplies its credential.
        """
        applied = self._whole(slot, "its kubelet cannot move to another cluster")
        spec = goal_with(applied.goal, access)
        files = await asyncio.to_thread(self._access_files, slot, access)
        if kubelet_access is not None:
            shown = kubelet.credential_files(spec, kubelet_access)
            replaced = {file.path for file in shown}
            files = (*(file for file in files if file.path not in replaced), *shown)
        await run_in_thread(self._put, slot, files, kubelet.links(kubelet_access) if kubelet_access else {})
        if await self._running.service_active(slot, kubelet.UNIT):
            await self._running.restart_service(slot, kubelet.UNIT)
        await run_in_thread(
            slot_files.write_build_record, self._paths, slot, replace(applied, goal=spec, node_uid=node_uid)
        )
        log.info("kubelet belongs to another cluster", slot=slot, access=str(access), node=node_uid)

    def _access_files(self, slot: Slot, access: ClusterAccess) -> tuple[slot_files.SlotFile, ...]:
        files = [slot_files.SlotFile(kubelet.CA, access.ca_pem.encode())]
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            files += [
                slot_files.SlotFile(path, kubeconfig_with(content, access), 0o600)
                for path in (kubelet.KUBECONFIG, kubelet.BOOTSTRAP)
                if (content := tree.read(path))
            ]
            if content := tree.read(kubelet.CONFIG):
                files.append(slot_files.SlotFile(kubelet.CONFIG, kubelet_config_with(content, access)))
        return tuple(files)

    def _whole(self, slot: Slot, otherwise: str) -> BuildRecord:
        applied = self.applied(slot)
        if applied is None:
            raise Rejected(f"{slot}: the slot is incomplete, so {otherwise}")
        return applied

    def _put(self, slot: Slot, files: tuple[slot_files.SlotFile, ...], links: Mapping[str, str]) -> None:
        """Write files and links durably."""
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            for file in files:
                tree.put(file.path, file.content, mode=file.mode)
            for path, target in links.items():
                tree.link(path, target)
        sync_file_system(self._paths.rootfs(slot))
        manual_changes.record_again(self._paths, slot, [*(file.path for file in files), *links])

    def applied(self, slot: Slot) -> BuildRecord | None:
        return slot_files.read_build_record(self._paths, slot)

    async def _prepare(self, slot: Slot) -> None:
        """Adapt the slot to the host's present state: devices and the driver may change with a reboot."""
        devices = await asyncio.to_thread(find_devices, self._paths)
        driver = gpus.DriverLibraries()
        if devices.nvidia:
            output = await self._commands.run("ldconfig", "-p")
            driver = gpus.libraries(output.stdout, self._arch)
        if not await self._running.active(slot):
            await run_in_thread(self._host_inputs.refresh, slot, driver)
        if await run_in_thread(self._host_inputs.write, self._host_inputs.files(slot, devices, driver)):
            await self._units.reload()

    async def show_devices(self) -> None:
        """Update the /dev of the running machine. Raises OSError where it ended in between."""
        for slot in Slot:
            if self._paths.rootfs(slot).is_dir() and (leader := await self._running.leader(slot)):
                root, block = self._paths.at(f"/proc/{leader}/root"), self._paths.at("/sys/dev/block")
                changes = await run_in_thread(sync_devices, self._paths.at("/dev"), root, block)
                if changes != DeviceChanges():
                    added = [path for path, _ in changes.add]
                    log.info("devices of the machine changed", slot=slot, added=added, removed=changes.remove)

    async def _show_devices(self, slot: Slot) -> None:
        try:
            await self.show_devices()
        except OSError as failure:  # Pods without such devices run all the same, and the daemon retries
            log.warning("cannot pass devices to the machine", error=failure, slot=slot)

    async def _describe_gpus(self, slot: Slot) -> None:
        """Generate the GPUs' CDI specification for the container runtime. Without it, the node still runs Pods without
        GPUs.
        """
        devices = await asyncio.to_thread(find_devices, self._paths)
        described: CdiResult | None = None
        if devices.nvidia:
            try:
                await self._running.run_inside(slot, "ldconfig", timeout_s=_GPU_S)
                await self._generate(slot)
                described = await asyncio.to_thread(self._specified, slot)
            except Failure as failure:
                log.warning("cannot describe the GPUs to the container runtime", error=failure, slot=slot)
                described = CdiResult(error=str(failure))
        await run_in_thread(write_cdi_result, self._paths, described)

    def _specified(self, slot: Slot) -> CdiResult:
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            return cdi_result(tree.read(gpus.SPECIFICATION))

    async def _generate(self, slot: Slot) -> None:
        *better, last = gpus.cdi_commands()
        for argv in better:
            try:
                await self._running.run_inside(slot, *argv, timeout_s=_GPU_S)
            except Transient:
                continue
            return
        await self._running.run_inside(slot, *last, timeout_s=_GPU_S)


def _filled(paths: HostPaths, slot: Slot) -> bool:
    try:
        return any(paths.rootfs(slot).iterdir())
    except OSError:
        return False


_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def _good(pem: str, now: WallClock) -> bool:
    """Return whether the PEM has an unexpired certificate, and a key."""
    found = _CERTIFICATE.search(pem)
    try:
        certificate = x509.load_pem_x509_certificate(found.group().encode()) if found else None
    except ValueError:
        return False
    return certificate is not None and "PRIVATE KEY-----" in pem and now() < certificate.not_valid_after_utc
