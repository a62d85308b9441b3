"""Condition `NetbootImageReady` on the Machines of a site, from the image cache of the leading replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.api.conditions import (
    ConditionReason,
    ConditionStatus,
    ConditionType,
    find_condition,
    remove_condition,
    set_condition,
)
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.images.image_controller import ImageController
from unbounded.metalman.images.model import ImageState

PROGRESS_S: Final = 5.0  # between two writes about one pull
WORKERS: Final = 4
KIND: Final = ConditionType.NETBOOT_IMAGE_READY


@dataclass(frozen=True)
class ImageConditionState:
    """Content of the condition."""

    status: ConditionStatus
    reason: ConditionReason
    text: str

    @property
    def is_pulling(self) -> bool:
        return self.reason is ConditionReason.PULLING


def image_condition(states: tuple[ImageState, ...]) -> ImageConditionState:
    """Return the condition for the images of a Machine; problems that the user has to correct come before running
    pulls.
    """
    unusable = [state for state in states if state.problem is not None and state.problem.unusable]
    failed = [state for state in states if state.problem is not None and not state.digest]
    missing = [state for state in states if not state.digest]
    if unusable:
        return _false(ConditionReason.UNUSABLE_IMAGE, unusable)
    if failed:
        return _false(ConditionReason.PULL_FAILED, failed)
    if missing:
        return _false(ConditionReason.PULLING, missing)
    served = "; ".join(f"{_name(state)} is {state.digest}{_problem_text(state)}" for state in states)
    is_signed = any(state.is_signed for state in states)
    reason = ConditionReason.PULLED_SIGNED if is_signed else ConditionReason.PULLED
    return ImageConditionState(ConditionStatus.TRUE, reason, served)


_NOTHING_TO_BOOT: Final = ImageConditionState(
    ConditionStatus.FALSE,
    ConditionReason.NO_IMAGE,
    "spec.pxe has neither image nor netbootImage, and metalman no --default-netboot-image: the host cannot boot the "
    "installer",
)


def _false(reason: ConditionReason, states: list[ImageState]) -> ImageConditionState:
    return ImageConditionState(
        ConditionStatus.FALSE, reason, "; ".join(f"{_name(state)}: {_state_text(state)}" for state in states)
    )


def _name(state: ImageState) -> str:
    return f"image {state.want.reference} for {state.want.platform}"


def _state_text(state: ImageState) -> str:
    if state.problem is not None:
        kept = f" (metalman still serves {state.digest})" if state.digest else ""
        return state.problem.text.removeprefix(f"image {state.want.reference}: ") + kept
    if state.progress is not None:
        return f"{state.progress.stage}, {state.progress.percent} %"
    return "metalman is resolving it"


def _problem_text(state: ImageState) -> str:
    return f" ({state.problem.text})" if state.problem is not None else ""


class ImageConditions:
    """Writer of the condition, which writes only changes; the percentage of a pull is written every five seconds."""

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        images: ImageController,
        *,
        site: str | None,
        metrics: ControllerMetrics | None = None,
        now: WallClock = utc_now,
        progress_s: float = PROGRESS_S,
    ) -> None:
        self._status = StatusWriter(api, MACHINES, fields=("conditions",), cache=machines)
        self._machines = machines
        self._images = images
        self._site = site
        self._now = now
        self._progress_s = progress_s
        self._controller: Controller[str] = Controller(
            "image conditions", self._update, workers=WORKERS, metrics=metrics
        )
        # our own writes change neither
        self._controller.follow(
            machines, lambda machine: (machine.name,), parts=lambda machine: (machine.spec, machine.site)
        )

    async def run(self) -> None:
        """Work until cancelled."""
        unsubscribe = self._images.subscribe(self._controller.enqueue)
        try:
            await self._controller.run()
        finally:
            unsubscribe()

    async def _update(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or self._site not in (None, machine.site):
            return None
        states = self._images.states(machine)
        said = image_condition(states) if states else _NOTHING_TO_BOOT if machine.spec.pxe is not None else None
        known = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
        if self._changed(known, said, machine) is not None:
            await self._write(machine, said)
        return self._progress_s if said is not None and said.is_pulling else None

    async def _write(self, machine: Machine, condition: ImageConditionState | None) -> None:
        """Write from a live read, as a patch replaces lists as a whole."""

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            changed = self._changed((raw.get("status") or {}).get("conditions") or [], condition, machine)
            return None if changed is None else {"conditions": changed}

        await self._status.update(machine.name, change, uid=machine.metadata.uid)

    def _changed(
        self, conditions: list[dict[str, Any]], condition: ImageConditionState | None, machine: Machine
    ) -> list[dict[str, Any]] | None:
        """Return the updated list, with the generation that the images belong to; None if nothing changes."""
        if condition is None:
            return remove_condition(conditions, KIND) if find_condition(conditions, KIND) is not None else None
        now, generation = rfc3339(self._now()), machine.metadata.generation
        return set_condition(
            conditions, KIND, condition.status, condition.reason, condition.text, now, observed_generation=generation
        )
