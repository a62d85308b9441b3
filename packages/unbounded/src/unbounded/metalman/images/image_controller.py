"""Image cache: pulls the images of a site's Machines, resolves tags again, and removes unused images.

Every replica has its own cache. A pulled image is served while the registry is down, also after a restart. A running
boot keeps the image that it began with (`PinnedImages`), so a tag that moves meanwhile does not mix two images.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from unbounded.api.failures import Failure, Transient
from unbounded.api.machine import Machine
from unbounded.fetch.failures import Corrupt, TooLarge, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Digest, Reference
from unbounded.fetch.store import ImageStore, Stored
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.metalman.boot_override import boots_by_media
from unbounded.metalman.http.boot_service import NotReadyYet
from unbounded.metalman.images import model
from unbounded.metalman.images.metadata import FOLDER, Metadata, read_disk, read_netboot
from unbounded.metalman.netboot.model import UEFI_LOADERS, BootImages, NetbootImage, no_uefi_loader

PULLS_AT_ONCE: Final = 4
RETRY_S: Final = 5
LOST: Final = "its files are missing from the cache; metalman fetches them again"
T = TypeVar("T")
_UNUSABLE: Final = (UnusableContent, TooLarge, Corrupt)

log = Log("metalman.images")


class _UnreferencedError(Exception):
    """No Machine refers to the image any more."""


class ImageController:
    """Implementation of `netboot.model.BootImageSource`.

    `run` updates it; images of an earlier run are available at once.

    Args:
        machines: of all sites.
        store: open, with `only=FOLDER`.
        site: cache the images of this site's Machines; None for all sites.
        logins: of this host, tried after pull secrets.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        store: ImageStore,
        *,
        site: str | None,
        defaults: model.NetbootImageDefaults | None = None,
        logins: RegistryLogins | None = None,
        metrics: ControllerMetrics | None = None,
        pace: model.ImageIntervals = model.DEFAULT_INTERVALS,
    ) -> None:
        self._api = api
        self._machines = machines
        self._store = store
        self._site = site
        self._defaults = defaults or model.NetbootImageDefaults()
        self._logins = logins or RegistryLogins()
        self._pace = pace
        self._entries: dict[model.ImageReference, model.ImageEntry] = {}
        self._referenced_by: dict[model.ImageReference, set[str]] = {}
        self._references: dict[str, model.ImageReferences] = {}
        self._pinned = model.PinnedImages(store, metrics)
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[str], None]] = []
        self._controller: Controller[model.ImageReference] = Controller(
            "images", self._sync, workers=PULLS_AT_ONCE, metrics=metrics
        )

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the name of each Machine whose images change; the returned function unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Pull, resolve and remove images until cancelled."""
        unsubscribe = self._machines.subscribe(self._machine_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._controller.run(), name="images")
                tasks.create_task(self._pinned.run(), name="images of boots")
                tasks.create_task(self._collect(), name="unused images")
                tasks.create_task(self._check(), name="lost images")
        finally:
            unsubscribe()

    # ---- what others ask

    def of(self, machine: Machine) -> BootImages | NotReadyYet:
        """Return the images of a Machine: those that its running boot began with, else the present ones."""
        return self._pinned.of(machine, self._now(machine))

    def states(self, machine: Machine) -> tuple[model.ImageState, ...]:
        """Return the state of each image of a Machine."""
        refs = model.references_of(machine, self._defaults)
        if refs is None:
            return ()
        states = tuple(self._state(ref, refs) for ref in refs.all())
        fault = self._media_fault(machine, refs)
        if not fault:
            return states
        return (replace(states[0], digest="", problem=model.ImageProblem(fault, unusable=True)), *states[1:])

    def _media_fault(self, machine: Machine, refs: model.ImageReferences) -> str:
        """Return why virtual media cannot have the netboot image; empty if it can, or the Machine boots otherwise."""
        entry, pxe = self._entries.get(refs.netboot), machine.spec.pxe
        metadata = None if entry is None else entry.read.get(model.ImageUse.NETBOOT)
        if pxe is None or not boots_by_media(machine) or not isinstance(metadata, Metadata):
            return ""
        if UEFI_LOADERS[pxe.architecture].loader in metadata.loaders:
            return ""
        return f"it {no_uefi_loader(pxe.architecture)}, as spec.pxe.bootMode VirtualMedia needs it"

    def _now(self, machine: Machine) -> BootImages | NotReadyYet:
        refs = model.references_of(machine, self._defaults)
        if refs is None:
            return NotReadyYet(RETRY_S, f"Machine {machine.name} has no image in spec.pxe")
        netboot = self._entries.get(refs.netboot)
        metadata = netboot.read.get(model.ImageUse.NETBOOT) if netboot is not None else None
        if not isinstance(metadata, Metadata) or netboot is None or netboot.stored is None:
            return self._not_yet(refs.netboot, refs)
        if refs.disk is None:
            if self._is_lost(refs.netboot):
                return self._not_yet(refs.netboot, refs)
            return BootImages(_image(netboot.stored), _image(netboot.stored), metadata.loaders)
        disk = self._entries.get(refs.disk)
        digest = disk.read.get(refs.disk_use) if disk is not None else None
        if not isinstance(digest, str) or disk is None or disk.stored is None:
            return self._not_yet(refs.disk, refs)
        for ref in refs.all():
            if self._is_lost(ref):
                return self._not_yet(ref, refs)
        images = _image(netboot.stored), _image(disk.stored)
        return BootImages(*images, metadata.loaders, digest, refs.disk.reference)

    def _not_yet(self, ref: model.ImageReference, refs: model.ImageReferences) -> NotReadyYet:
        state = self._state(ref, refs)
        if state.problem is not None:
            return NotReadyYet(RETRY_S, f"image {ref.reference}: {state.problem.text}")
        if state.progress is not None:
            return NotReadyYet(RETRY_S, f"image {ref.reference}: {state.progress.stage} {state.progress.percent} %")
        return NotReadyYet(RETRY_S, f"image {ref.reference}: metalman is resolving it")

    def _state(self, ref: model.ImageReference, refs: model.ImageReferences) -> model.ImageState:
        entry = self._entries.get(ref, model.ImageEntry())
        progress = next((one for one in self._store.pulls() if one.reference == _full(ref.reference)), None)
        wrong = next(
            (one for use in refs.uses(ref) if isinstance(one := entry.read.get(use), model.ImageProblem)), None
        )
        served = entry.stored is not None and wrong is None
        digest = str(entry.stored.digest) if entry.stored and served else ""
        metadata = entry.read.get(model.ImageUse.NETBOOT) if ref == refs.netboot else None
        is_signed = isinstance(metadata, Metadata) and metadata.is_signed
        return model.ImageState(ref, digest, wrong or entry.problem, progress, is_signed)

    # ---- following the Machines

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        changed = new or old
        if changed is None:
            return
        name = changed.name
        ours = new is not None and self._site in (None, new.site)
        refs = model.references_of(new, self._defaults) if new is not None and ours else None
        before = self._references.get(name)
        if refs is None:
            self._pinned.forget(name)
        if (
            old is not None
            and model.running_boot(old)
            and new is not None
            and model.running_boot(new) != model.running_boot(old)
        ):
            self._changed.set()  # its pinned images may be removed
        if refs == before:
            return
        kept = refs.all() if refs else ()
        for ref in before.all() if before else ():
            if ref not in kept:
                self._unreference(ref, name)
        if refs is None:
            self._references.pop(name, None)
        else:
            self._references[name] = refs
            for ref in kept:
                self._referenced_by.setdefault(ref, set()).add(name)
                self._controller.enqueue(ref)
        self._changed.set()
        self._notify({name})

    def _unreference(self, ref: model.ImageReference, name: str) -> None:
        names = self._referenced_by.get(ref, set())
        names.discard(name)
        if not names:
            self._referenced_by.pop(ref, None)
            if (entry := self._entries.pop(ref, None)) is not None:
                entry.dropped.set()

    def _notify(self, names: set[str]) -> None:
        for name in names:
            for listener in self._listeners:
                listener(name)

    # ---- one image

    async def _sync(self, ref: model.ImageReference) -> float | None:
        """Pull the image that the reference resolves to now; return the seconds until the next time."""
        if ref not in self._referenced_by:
            return None
        entry = self._entries.setdefault(ref, model.ImageEntry())
        before = (entry.stored, entry.problem)
        try:
            return await self._pull(ref, entry)
        except Failure as failure:
            return self._failed(ref, entry, failure)
        except _UnreferencedError:
            self._changed.set()  # the pull may have succeeded in the last moment
            return None
        finally:
            if before != (entry.stored, entry.problem):
                self._notify(set(self._referenced_by.get(ref, ())))

    async def _pull(self, ref: model.ImageReference, entry: model.ImageEntry) -> float | None:
        """Take the image on disk first, then the registry's; return the seconds until the next time."""
        if entry.stored is None and (found := self._store.find(ref.reference, ref.platform)) is not None:
            await self._serve(ref, entry, found)
        logins = await model.logins_of(self._api, ref.secret, self._logins)
        stored = await _unless_dropped(entry.dropped, self._store.ensure(ref.reference, ref.platform, logins))
        await self._serve(ref, entry, stored)
        entry.failures = 0
        entry.problem = model.ImageProblem("registry does not answer; using its last answer") if stored.stale else None
        if stored.stale:
            return self._pace.after_failure.max_s
        return None if ref.is_immutable else self._pace.resolve_s

    async def _serve(self, ref: model.ImageReference, entry: model.ImageEntry, stored: Stored) -> None:
        """Serve the stored image from now on, and read it for the uses that Machines have for it."""
        uses = {use for name in self._referenced_by.get(ref, ()) for use in self._references[name].uses(ref)}
        known = entry.read if entry.stored is not None and entry.stored.digest == stored.digest else {}
        root = stored.root / FOLDER
        read = dict(known)
        for use in uses - read.keys():
            read[use] = await asyncio.to_thread(partial(_read, root, use))
        moved = entry.stored is not None and entry.stored.digest != stored.digest
        entry.stored, entry.read = stored, read
        if moved:
            log.info("image changed", image=ref.reference, digest=str(stored.digest))
            self._changed.set()

    def _failed(self, ref: model.ImageReference, entry: model.ImageEntry, failure: Failure) -> float:
        entry.failures += 1
        refused = isinstance(failure, _UNUSABLE)
        again_s = (self._pace.after_refusal if refused else self._pace.after_failure).after(entry.failures)
        problem = model.ImageProblem(str(failure), unusable=isinstance(failure, UnusableContent))
        report = log.debug if entry.problem == problem else log.warning
        report("cannot pull image", image=ref.reference, why=str(failure), again_in_s=round(again_s, 1))
        entry.problem = problem
        return again_s

    # ---- images whose files disappear

    async def _check(self) -> None:
        """Check images without a running boot too, so that conditions are true and the next boot finds its image."""
        while True:
            await asyncio.sleep(self._pace.check_s)
            for ref in tuple(self._entries):
                self._is_lost(ref)

    def _is_lost(self, ref: model.ImageReference) -> bool:
        """Return whether the files of a served image are gone; if so, pull the image again."""
        entry = self._entries.get(ref)
        if entry is None or entry.stored is None or _image(entry.stored).is_on_disk:
            return False
        log.warning("image is missing from the cache", image=ref.reference, folder=str(entry.stored.root))
        entry.stored, entry.read, entry.problem = None, {}, model.ImageProblem(LOST)
        self._controller.enqueue(ref)
        self._notify(set(self._referenced_by.get(ref, ())))
        return True

    # ---- letting go

    async def _collect(self) -> None:
        """Remove images that no Machine and no running boot uses, some time after the start or a change."""
        await self._machines.synced.wait()  # before that, all images would seem unused
        self._changed.set()
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._pace.collect_after_s)
            self._changed.clear()
            try:
                await self._store.collect(self._used(), keep_bytes=self._pace.keep_bytes)
            except (Transient, OSError) as error:
                log.warning("cannot remove unused images", error=error)

    def _used(self) -> set[Digest]:
        machines = filter(None, map(self._machines.get, self._references))
        used = self._pinned.used(machines)
        for ref in self._referenced_by:
            entry = self._entries.get(ref)
            if entry is not None and entry.stored is not None:
                used.add(entry.stored.digest)
            try:
                found = self._store.find(ref.reference, ref.platform)
            except UnusableContent:
                continue
            if found is not None:
                used.add(found.digest)
        return used


async def _unless_dropped(dropped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work; cancel the work once its image is dropped.

    Raises:
        _UnreferencedError: the image was dropped.
    """
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(dropped.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _UnreferencedError
        return task.result()
    finally:
        for one in (task, waiting):
            one.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


def _read(root: Path, use: model.ImageUse) -> Metadata | str | model.ImageProblem:
    try:
        return (
            read_netboot(root)
            if use is model.ImageUse.NETBOOT
            else read_disk(root, alone=use is model.ImageUse.DISK_ALONE)
        )
    except UnusableContent as error:
        return model.ImageProblem(str(error), unusable=True)
    except OSError as error:
        return model.ImageProblem(f"{error.filename}: {error.strerror}")


def _image(stored: Stored) -> NetbootImage:
    return NetbootImage(stored.root / FOLDER, str(stored.digest))


def _full(reference: str) -> str:
    try:
        return str(Reference.parse(reference))
    except UnusableContent:
        return reference
