"""Entry point of network boot: maps a request to its boot and its file, and records the observed progress.

`NetbootRequestHandler` is the port that the HTTP and TFTP servers use for files and reports; its `reservations` and its
`findings` are those of the DHCP server. Any replica may run it: its state follows from the API, except for the traces
that `duplicate_host` needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unbounded.api.conditions import ConditionType
from unbounded.api.hardware import HardwareSource
from unbounded.api.machine import MACHINES, LayoutRecord, Machine, NetbootMilestone
from unbounded.api.machine_status import DiskErasure, DiskErasureRecord
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api, ApiError
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.metalman.disk_choice import AwaitedDisk, ChosenDisk, DiskRefused
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    HardwareReport,
    NotReadyYet,
    OnDisk,
    ProgressReport,
    Rendered,
    ReportAnswer,
    RescueReport,
)
from unbounded.metalman.inspection import inspected
from unbounded.metalman.layout.model import LayoutImage
from unbounded.metalman.media.tickets import TicketKey
from unbounded.metalman.netboot import erase_and_rescue, image_paths, model
from unbounded.metalman.netboot.boot_files import DIGEST, RETRY_S, SIZE, BootFiles
from unbounded.metalman.netboot.boot_index import BootIndex, NetbootReservations
from unbounded.metalman.netboot.boot_progress import BootTracker, FindingReporter
from unbounded.metalman.netboot.boot_requests import PrefixKey, boot_record
from unbounded.metalman.netboot.index_updater import BootIndexUpdater
from unbounded.metalman.netboot.installs import LAYOUT, BootLayouts, choose_install_disk, profile_name, write_obstacle
from unbounded.metalman.netboot.media_content import BootMediaSource
from unbounded.metalman.netboot.model import (
    BootImages,
    BootObservation,
    BootRequest,
    BootVisit,
    BootWindow,
)
from unbounded.metalman.netboot.status_writer import BootStatusWriter, cloud_init_condition, image_written
from unbounded.metalman.tftp.protocol import ErrorCode, TftpContent, TftpRejection
from unbounded.operations.parameters import erased_disks

WRITE_S: Final = 10.0  # limit on the wait of a report whose observation has to be written first
DONE: Final = ReportAnswer(200, {"status": "ok"})
WRITTEN: Final = ReportAnswer(409, {"error": "the image of this boot is written already"})
UNKNOWN: Final = ReportAnswer(404, {"error": "not found"})
CONTESTED: Final = ReportAnswer(409, {"error": "this boot ended because two hosts took part in it"})

log = Log("metalman.netboot")


@dataclass(frozen=True, slots=True)
class NetbootDependencies:
    """Dependencies of a site.

    Args:
        machines: of all sites; `site` selects, and None selects all.
        operations: indexed by INDEX_MACHINE.
        tickets: key of the tickets of virtual media.
        server: the server's own address as clients reach it, four octets.
        serve_url: URL of its HTTP server, as clients reach it.
        neighbours: returns the MAC behind an address, if clients are on the server's segment.
        allow_profile_scripts: commands of MachineProfiles may run on hosts.
    """

    api: Api
    machines: Cache[Machine]
    operations: Cache[MachineOperation]
    images: model.BootImageSource
    facts: model.TemplateContextSource
    attestation: model.Attester
    key: PrefixKey
    tickets: TicketKey
    server: bytes
    serve_url: str
    site: str | None = None
    neighbours: model.MacLookup = lambda _address: None
    announce: EventSink = no_events
    metrics: ControllerMetrics | None = None
    now: WallClock = utc_now
    allow_profile_scripts: bool = False


class NetbootRequestHandler:
    """Boots of one metalman, served while `run` runs.

    Implements `http.boot_service.BootService` and `tftp.protocol.TftpFiles`.
    """

    def __init__(self, parts: NetbootDependencies) -> None:
        self._parts = parts
        self._library = image_paths.ImageFiles()
        self._index = BootIndex(lambda request: parts.key.prefix(request.uid, request.boot))
        self._writer = BootStatusWriter(
            parts.api, parts.machines, self._is_requested, now=parts.now, metrics=parts.metrics
        )
        self._files = BootFiles(
            parts.api,
            parts.facts,
            self._library,
            self._index,
            serve_url=parts.serve_url,
            announce=parts.announce,
            note=self._writer.note,
        )
        self._layouts = BootLayouts(parts.api, allow_scripts=parts.allow_profile_scripts)
        self.findings = FindingReporter(parts.machines, self._index, self._writer.note, parts.announce)
        self._tracker = BootTracker(
            parts.machines,
            self._index,
            parts.images,
            note=self._writer.note,
            close=self._close,
            announce=parts.announce,
            neighbours=parts.neighbours,
        )
        self._updater = BootIndexUpdater(
            parts.machines,
            parts.operations,
            self._index,
            site=parts.site,
            changed=self.findings.leases_changed,
            began=self._tracker.start_boot,
            ended=self._tracker.forget,
            stale=self._tracker.expire_repave,
            now=parts.now,
        )
        self._erasures = erase_and_rescue.ErasureService(parts.api, self._recorded, parts.now)
        self.media = BootMediaSource(
            parts.machines,
            parts.operations,
            self._index,
            parts.images,
            self._files,
            self._library,
            parts.tickets,
            note=self._writer.note,
            now=parts.now,
        )
        self.reservations = NetbootReservations(
            self._index, self._tracker, server=parts.server, serve_url=parts.serve_url
        )

    async def run(self) -> None:
        """Follow the caches and write observations until cancelled. Before that, no client gets a file."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._updater.run(), name="netboot index")
            tasks.create_task(self._writer.run(), name="netboot status")

    @property
    def requests(self) -> tuple[BootRequest, ...]:
        """Requested boots."""
        return self._index.all_requests()

    def url(self, machine: str) -> str | None:
        """Return the URL of a Machine's requested boot, which is secret; None if there is no boot."""
        return self._files.url(machine)

    async def flush(self, machine: str) -> None:
        """Wait until all observations of a Machine up to now are in its status."""
        await self._writer.flush(machine)

    # ---- http.boot_service.BootService

    async def file(self, client: str, prefix: str | None, path: str) -> OnDisk | Rendered | NotReadyYet | FileRejected:
        """Return the file of a path for a client."""
        visit = self._identify(client, prefix)
        if not isinstance(visit, BootVisit):
            return visit
        served = self._parts.images.of(visit.machine)
        if isinstance(served, NotReadyYet):
            return served
        plain = image_paths.normalized_path(path)
        if plain is None:
            return FileRejected(404, "not a valid file name")
        kind = image_paths.file_role(plain, served.loaders)
        if prefix is None and kind not in image_paths.FIRST_STAGES:
            return FileRejected(404, "this file is only available under the URL prefix of the boot")
        if not visit.request.installs and (
            kind is image_paths.FileRole.DISK or plain in (image_paths.USER_DATA, image_paths.NETWORK_CONFIG)
        ):
            return FileRejected(404, visit.request.no_install)
        if kind is image_paths.FileRole.DISK and visit.request.window is BootWindow.INSTALLING:
            if (
                not plain.endswith((DIGEST, SIZE))
                and (obstacle := await self._write_obstacle(visit, served, plain)) is not None
            ):
                return obstacle
            self._tracker.record_image_request(visit.request)
        if (
            plain == LAYOUT
            and prefix is not None
            and visit.request.installs
            and (visit.request.window is BootWindow.INSTALLING)
        ):
            image = image_paths.layout_image(self._library, served)
            return await self._layouts.text(visit.machine.name, visit.request.boot, self._consent(visit.request), image)
        private = prefix is not None and visit.request.installs
        return await self._files.file(visit, served, plain, private=private)

    async def served(self, client: str, prefix: str | None, path: str) -> None:
        """Record that a file was sent to its end."""
        visit = self._identify(client, prefix)
        plain = image_paths.normalized_path(path)
        if isinstance(visit, BootVisit) and plain is not None:
            self._record_sent_file(visit, client, plain)

    async def disable(self, client: str, prefix: str) -> ReportAnswer:
        """Record that the image is written, so that the install does not start again. Repeated calls change nothing."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        if not visit.request.installs:
            return ReportAnswer(409, {"error": visit.request.no_install})
        request, pxe = visit.request, visit.machine.spec.pxe
        if request.window is BootWindow.INSTALLING and pxe is not None:
            log.info("image written", machine=request.machine, boot=request.boot)
            written = image_written(pxe.image or "", request.repave)
            self._writer.note(request.machine, replace(written, boot=request.boot))
        return await self._flushed(request.machine)

    async def cloud_init(self, client: str, prefix: str, event: CloudInitEvent) -> ReportAnswer:
        """Record an event of cloud-init; the status shows only the start and the end of stages."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        if not visit.request.installs:
            return ReportAnswer(409, {"error": visit.request.no_install})
        name, text = (self._index.without_prefix(each, visit.machine.name) for each in (event.name, event.description))
        message = cloud_init_condition(event.event_type, name, event.result, text)
        if message is not None:
            observation = BootObservation(boot=visit.request.boot, conditions={ConditionType.CLOUD_INIT_DONE: message})
            self._writer.note(visit.request.machine, observation)
        return DONE

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> ReportAnswer:
        """Record a progress report of the installer."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        if visit.request.window is not BootWindow.INSTALLING:
            return DONE
        if not visit.request.installs:
            report = msgspec.structs.replace(report, disk="")  # status.targetDisk is the disk of an install
        else:
            message = await self._layouts.without_secrets(visit.machine, visit.request.boot, report.message)
            report = msgspec.structs.replace(report, message=message)
        return DONE if self._tracker.progress(visit.request, report) else CONTESTED

    async def hardware(self, client: str, prefix: str, report: HardwareReport) -> ReportAnswer:
        """Record the installer's inspection, and choose the disk that it writes; none where nothing is installed.

        A report without the expected disk is not recorded before the last one: a late disk is no missing one.
        """
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        request = visit.request
        if request.window is not BootWindow.INSTALLING:
            # a host that starts from its virtual CD drive once more is Off until the image is ejected
            return erase_and_rescue.SWITCH_OFF if request.by_media else WRITTEN
        if request.erases:
            return await self._erasures.hardware(request, report)
        if not request.installs:
            text = "the installer has reported the hardware"
            recorded = await self._record_hardware(visit, report, NetbootMilestone.HARDWARE_REPORTED, text)
            return (
                (erase_and_rescue.START_RESCUE if request.rescues else erase_and_rescue.SWITCH_OFF)
                if recorded is DONE
                else recorded
            )
        try:  # a spec or a disk of the last install that the cache does not have yet would choose another disk
            machine = await self._parts.api.get(MACHINES, request.machine)
        except ApiError as error:
            log.warning("cannot read the Machine", error=error, machine=request.machine)
            return ReportAnswer(503, {"error": "cannot read the Machine now"}, RETRY_S)
        if machine.metadata.uid != request.uid:
            return UNKNOWN
        served = self._parts.images.of(machine)
        if isinstance(served, NotReadyYet):
            return ReportAnswer(503, {"error": served.text}, served.retry_after_s)
        if profile_name(machine):
            image = image_paths.layout_image(self._library, served)
            return await self._layout_answer(visit, machine, image, report)
        sectors = image_paths.image_sectors(self._library, served.disk)
        choice = choose_install_disk(machine, request.boot, self._consent(request), report, sectors)
        if isinstance(choice, AwaitedDisk):
            return ReportAnswer(200, {"status": "ok", "action": "Wait", "message": choice.message})
        text = choice.message if isinstance(choice, DiskRefused) else f"metalman has chosen {choice.path}"
        erasure = choice.erasure if isinstance(choice, ChosenDisk) else None
        recorded = await self._record_hardware(visit, report, NetbootMilestone.INSTALLER_STARTED, text, erasure=erasure)
        if recorded is not DONE:
            return recorded
        if isinstance(choice, DiskRefused):
            return ReportAnswer(409, {"error": choice.message})
        if erasure is not None and not await self._is_recorded(request, erasure):
            return ReportAnswer(503, {"error": "cannot record the erasure of a disk now"}, RETRY_S)
        erases = {} if erasure is None else {"erase": erasure.serial_number}
        log.info("disk chosen", machine=machine.name, boot=request.boot, disk=choice.path, **erases)
        return ReportAnswer(200, {"status": "ok", "action": "Write", "disk": choice.path, **erases})

    async def erasure(self, client: str, prefix: str, report: DiskErasureRecord) -> ReportAnswer:
        """Record the state of a disk's erasure by the installer of a HostErase."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        if not visit.request.erases or visit.request.window is not BootWindow.INSTALLING:
            return erase_and_rescue.OTHER_BOOT
        return await self._erasures.progress(visit.request, report)

    async def _layout_answer(
        self, visit: BootVisit, machine: Machine, image: LayoutImage, report: HardwareReport
    ) -> ReportAnswer:
        async def record(message: str, layout: LayoutRecord | None) -> ReportAnswer | None:
            milestone = NetbootMilestone.INSTALLER_STARTED
            recorded = await self._record_hardware(visit, report, milestone, message, layout=layout)
            return None if recorded is DONE else recorded

        boot, consent = visit.request.boot, self._consent(visit.request)
        return await self._layouts.answer(machine, boot, consent, image, report, record)

    def _consent(self, request: BootRequest) -> tuple[str, ...]:
        """Return the serial numbers of the disks that the operation of a boot permits to be erased."""
        operation = self._operation(request)
        return () if operation is None else erased_disks(operation)

    def _operation(self, request: BootRequest) -> MachineOperation | None:
        """Return the operation that requests a boot; None if there is none."""
        operation = self._parts.operations.get(request.operation) if request.operation else None
        return None if operation is None or operation.metadata.uid != request.boot else operation

    async def _is_recorded(self, request: BootRequest, erasure: DiskErasure) -> bool:
        """Return whether this erasure is the one of the boot: a write for a boot that has just ended is dropped."""
        try:
            seen = boot_record(await self._parts.api.get(MACHINES, request.machine), request.boot)
        except ApiError as error:
            log.warning("cannot read the Machine", error=error, machine=request.machine)
            return False
        return seen is not None and seen.erasure == erasure

    async def _record_hardware(
        self,
        visit: BootVisit,
        report: HardwareReport,
        milestone: NetbootMilestone,
        message: str,
        erasure: DiskErasure | None = None,
        layout: LayoutRecord | None = None,
    ) -> ReportAnswer:
        boot = visit.request.boot
        served = self._tracker.served(visit.request) if visit.request.by_media else None
        hardware = inspected(report.hardware, HardwareSource.INSTALLER, rfc3339(self._parts.now()), boot)
        observation = BootObservation(
            boot,
            milestone,
            message=message,
            image=None if served is None else served.disk_reference,
            image_digest=None if served is None else served.disk.digest,
            hardware=hardware,
            erasure=erasure,
            layout=layout,
        )
        return await self._recorded(visit.machine.name, observation)

    async def _recorded(self, machine: str, observation: BootObservation) -> ReportAnswer:
        self._writer.note(machine, observation)
        return await self._flushed(machine)

    async def rescue(self, client: str, prefix: str, report: RescueReport) -> ReportAnswer:
        """Record the state of a rescue system, and answer with the keys that may log in once the status has it."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        operation = self._operation(visit.request)
        if operation is None or erase_and_rescue.is_rescue_over(visit):
            return erase_and_rescue.RESCUE_OVER
        change = erase_and_rescue.rescue_change(visit, client, report)
        if change is not None:
            self._writer.note(visit.request.machine, change)
            recorded = await self._flushed(visit.request.machine)
            if recorded is not DONE or report.ended:
                return recorded
        return erase_and_rescue.rescue_answer(operation)

    async def attest(self, client: str, prefix: str, request: bytes) -> ReportAnswer:
        """Attest that a host is the Machine, by its TPM."""
        visit = self._identify_report(client, prefix)
        if isinstance(visit, ReportAnswer):
            return visit
        if not visit.request.installs:
            return ReportAnswer(409, {"error": visit.request.no_install})
        boot, operation = visit.request.boot, self._operation(visit.request)
        return await self._parts.attestation.answer(visit.machine, request, boot, operation)

    # ---- tftp.protocol.TftpFiles

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection:
        """Return a file of the first stages for the host with this address."""
        found = await self.file(client, None, name)
        if isinstance(found, FileRejected):
            return TftpRejection(text="File not found" if found.code == 404 else found.text)
        if isinstance(found, NotReadyYet):
            return TftpRejection(ErrorCode.UNDEFINED, found.text)

        def sent() -> None:
            visit = self._identify(client, None)
            if isinstance(visit, BootVisit):
                self._record_sent_file(visit, client, name)

        if isinstance(found, Rendered):
            return image_paths.TextContent(found.content, sent)
        try:
            return image_paths.FileContent(found.path, sent)
        except OSError as error:
            return TftpRejection(ErrorCode.UNDEFINED, f"The file cannot be read: {error.strerror}")

    # ---- inside

    def _is_requested(self, machine: Machine, boot: str) -> bool:
        return self._updater.is_requested(machine, boot)

    def _close(self, request: BootRequest) -> None:
        self._updater.close(request)

    def _identify(self, client: str, prefix: str | None) -> BootVisit | NotReadyYet | FileRejected:
        """Identify the boot of a request: by its prefix, or else by the client's address."""
        if prefix is None:
            name = self._index.by_address(client)
            request = None if name is None else self._index.request_of(name)
            if request is not None and (request.window is not BootWindow.INSTALLING or request.by_media):
                request = None
        else:
            request = self._index.by_prefix(prefix)
        machine = None if request is None else self._parts.machines.get(request.machine)
        if request is None or machine is None or machine.metadata.uid != request.uid:
            return FileRejected(404, "this client has no requested boot")
        if not self._tracker.check_request(request, client, by_prefix=prefix is not None):
            return FileRejected(409, "this boot ended because two hosts took part in it")
        if request.window is BootWindow.SUSPENDED:
            return NotReadyYet(RETRY_S, "the operation that requested this boot is being undone, or continues soon")
        return BootVisit(request, machine)

    def _identify_report(self, client: str, prefix: str) -> BootVisit | ReportAnswer:
        visit = self._identify(client, prefix)
        match visit:
            case FileRejected(code=code):
                return CONTESTED if code == 409 else UNKNOWN
            case NotReadyYet(retry_after_s=seconds, text=text):
                return ReportAnswer(503, {"error": text}, seconds)
            case BootVisit():
                return visit

    def _record_sent_file(self, visit: BootVisit, client: str, path: str) -> None:
        served = self._tracker.served(visit.request)
        if served is not None:
            self._tracker.record_sent_file(visit.request, client, path, image_paths.file_role(path, served.loaders))

    async def _flushed(self, machine: str) -> ReportAnswer:
        """Wait for the status write of a report, and return the answer to the report."""
        try:
            async with asyncio.timeout(WRITE_S):
                await self._writer.flush(machine)
        except TimeoutError:
            return ReportAnswer(503, {"error": "cannot record it now"}, RETRY_S)
        return DONE

    async def _write_obstacle(
        self, visit: BootVisit, served: BootImages, path: str
    ) -> FileRejected | NotReadyYet | None:
        """Return why a boot may not write a disk now; None if it may."""
        sectors = image_paths.image_sectors(self._library, served.disk)
        boot, consent = visit.request.boot, self._consent(visit.request)
        rootfs = image_paths.is_rootfs(path)
        if write_obstacle(visit.machine, boot, consent, sectors, rootfs=rootfs) is None:
            return None
        try:  # another replica may have recorded a report just now
            machine = await self._parts.api.get(MACHINES, visit.machine.name)
        except ApiError as error:
            log.warning("cannot read the Machine", error=error, machine=visit.machine.name)
            return NotReadyYet(RETRY_S, "cannot read the Machine now")
        obstacle = write_obstacle(machine, boot, consent, sectors, rootfs=rootfs)
        if obstacle is not None:
            self._writer.note(machine.name, BootObservation(boot, message=obstacle.text))
        return obstacle
