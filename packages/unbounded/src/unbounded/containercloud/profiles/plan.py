"""The MachineProfiles that BareMetalHostProfiles become, and the profile of each Machine. Pure.

A MachineProfile has the layout of one version of a BareMetalHostProfile: an edit makes another one, so that an install
ends with the layout that it began with. The old one is deleted when no Machine refers to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from unbounded.api.container_cloud.host import MAX_PLANNED, BareMetalHostProfile
from unbounded.api.container_cloud.machine import ContainerCloudMachine, MachineStage
from unbounded.api.container_cloud.names import ANNOTATION_HOST_PROFILE, LABEL_DEFAULT_PROFILE
from unbounded.api.machine import ActiveOperation, Machine
from unbounded.api.operation import OperationKind
from unbounded.api.profile import MachineProfile
from unbounded.api.profile_check import SCRIPT_FLAG, ProfileFault, commands_in, resolve
from unbounded.containercloud.waits import CONTAINER_CLOUD, MachineWait

USABLE: Final = "Usable"
LONGEST_NAME: Final = 244  # of the part before the digest
DIGITS: Final = 8


class ProfileReason(StrEnum):
    """Reasons of condition Usable, and causes for which a Machine has no profile yet."""

    USABLE = "Usable"
    INVALID = "ProfileInvalid"
    NAME_TAKEN = "NameTaken"
    MISSING = "ProfileMissing"
    AMBIGUOUS = "ProfileAmbiguous"
    PENDING = "ProfilePending"


PROFILE_ENDS: Final[Mapping[ProfileReason, str]] = {
    ProfileReason.INVALID: "the profile is usable",
    ProfileReason.NAME_TAKEN: "the name is free",
    ProfileReason.MISSING: "the profile exists, or the Machine names another one",
    ProfileReason.AMBIGUOUS: "the namespace has one default profile",
    ProfileReason.PENDING: "the host's Machine refers to the layout",
}
"""Events that end the waits of a Machine for its profile."""


def profile_wait(reason: ProfileReason, message: str, held_by: str) -> MachineWait:
    """Return the wait of a Machine for its profile."""
    return MachineWait(reason, message, held_by, PROFILE_ENDS[reason])


@dataclass(frozen=True)
class ProfileView:
    """All that the plan of one BareMetalHostProfile depends on.

    Args:
        profile: None if it is gone.
        layouts: MachineProfiles that were made for it.
        taken: a MachineProfile that others made has the name of the present version.
        machines: Machines that may use the profile, with the Machine of their host.
        referred: names of the MachineProfiles that any Machine refers to.
    """

    profile: BareMetalHostProfile | None
    layouts: Sequence[MachineProfile] = ()
    taken: bool = False
    machines: Sequence[tuple[ContainerCloudMachine, Machine]] = ()
    referred: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ProfilePlan:
    """The next step of a profile.

    Args:
        create: MachineProfile to create.
        delete: MachineProfiles that nothing needs any more.
        planned: digest of the layout that each host got, by NAMESPACE/NAME.
    """

    create: Mapping[str, Any] | None = None
    delete: tuple[MachineProfile, ...] = ()
    reason: ProfileReason = ProfileReason.USABLE
    message: str = ""
    planned: Mapping[str, str] = field(default_factory=dict)


def full_name(profile: BareMetalHostProfile) -> str:
    return f"{profile.metadata.namespace}/{profile.name}"


def layout_name(profile: BareMetalHostProfile) -> str:
    """Return the name of the MachineProfile with the present layout of a profile."""
    meta = profile.metadata
    content = msgspec.json.encode([meta.namespace, meta.name, profile.spec], order="deterministic")
    digest = hashlib.sha256(content).hexdigest()[:DIGITS]
    return f"{f'{meta.name}.{meta.namespace}'[:LONGEST_NAME].rstrip('.-')}-{digest}"


def plan_profile(view: ProfileView) -> ProfilePlan:
    """Return the next step of a profile."""
    profile = view.profile
    if profile is None or profile.metadata.deletion_timestamp is not None:
        return ProfilePlan(delete=_unused(view, ""))
    name, planned = layout_name(profile), _planned(view)
    delete = _unused(view, name)
    try:
        resolve(profile.spec, allow_scripts=True)
    except (ProfileFault, ValueError) as error:
        return ProfilePlan(None, delete, ProfileReason.INVALID, str(error), planned)
    if view.taken:
        text = f"MachineProfile {name} exists, and was not made for this profile: delete it"
        return ProfilePlan(None, delete, ProfileReason.NAME_TAKEN, text, planned)
    create = None
    if all(one.name != name for one in view.layouts):
        metadata = {
            "name": name,
            "annotations": {ANNOTATION_HOST_PROFILE: full_name(profile)},
        }
        create = {"metadata": metadata, "spec": msgspec.to_builtins(profile.spec)}
    commands = ", ".join(commands_in(profile.spec))
    text = f"MachineProfile {name} has the layout" + (
        f"; metalman runs {commands} only with {SCRIPT_FLAG}" if commands else ""
    )
    return ProfilePlan(create, delete, ProfileReason.USABLE, text, planned)


def _unused(view: ProfileView, present: str) -> tuple[MachineProfile, ...]:
    return tuple(one for one in view.layouts if one.name != present and one.name not in view.referred)


def _planned(view: ProfileView) -> dict[str, str]:
    names = {one.name for one in view.layouts}
    planned: dict[str, str] = {}
    for machine, target in view.machines:
        execution, layout = machine.status.execution, target.status.layout
        if execution is not None and execution.host is not None and layout is not None and layout.profile in names:
            planned[str(execution.host)] = layout.digest
    return dict(sorted(planned.items())[:MAX_PLANNED])


# ---- the profile of a Machine


@dataclass(frozen=True)
class ChosenProfile:
    """The profile of a Machine, or the wait for it; without either, the image is written to one whole disk."""

    profile: BareMetalHostProfile | None = None
    fault: MachineWait | None = None


def choose_profile(machine: ContainerCloudMachine, profiles: Iterable[BareMetalHostProfile]) -> ChosenProfile:
    """Return the profile of a Machine: the one that it names, or else the default one of its namespace."""
    named, namespace = machine.value.bare_metal_host_profile, machine.metadata.namespace
    if named is not None:
        wanted = f"{named.namespace or namespace}/{named.name}"
        for profile in profiles:
            if full_name(profile) == wanted:
                return ChosenProfile(profile)
        text = f"spec.providerSpec.value.bareMetalHostProfile: there is no BareMetalHostProfile {wanted}"
        return ChosenProfile(None, profile_wait(ProfileReason.MISSING, text, f"BareMetalHostProfile {wanted}"))
    defaults = [
        one
        for one in profiles
        if one.metadata.namespace == namespace and one.metadata.labels.get(LABEL_DEFAULT_PROFILE) == "true"
    ]
    if len(defaults) > 1:
        names = ", ".join(sorted(one.name for one in defaults))
        text = f"several BareMetalHostProfiles of namespace {namespace} have the label {LABEL_DEFAULT_PROFILE}: {names}"
        holder = f"BareMetalHostProfiles of namespace {namespace}"
        return ChosenProfile(None, profile_wait(ProfileReason.AMBIGUOUS, text, holder))
    return ChosenProfile(defaults[0] if defaults else None)


def profile_obstacle(
    machine: ContainerCloudMachine, target: Machine, profiles: Iterable[BareMetalHostProfile]
) -> MachineWait | None:
    """Return why a host cannot be installed with the profile of its Machine yet; None if it can."""
    chosen = choose_profile(machine, profiles)
    profile = chosen.profile
    if chosen.fault is not None:
        return chosen.fault
    if profile is not None:
        for condition in profile.status.conditions:
            is_present = condition.observed_generation == profile.metadata.generation
            if condition.type == USABLE and condition.status != "True" and is_present:
                reason, name = ProfileReason(condition.reason), f"BareMetalHostProfile {full_name(profile)}"
                holder = f"MachineProfile {layout_name(profile)}" if reason is ProfileReason.NAME_TAKEN else name
                return profile_wait(reason, f"{name}: {condition.message}", holder)
    wanted = None if profile is None else layout_name(profile)
    if _reference(target) != wanted:
        text = f"Machine {target.name} does not refer to MachineProfile {wanted} yet"
        active = _installing(target)
        return profile_wait(
            ProfileReason.PENDING, text, CONTAINER_CLOUD if active is None else f"HostReplace {active.name}"
        )
    return None


def _installing(target: Machine) -> ActiveOperation | None:
    """Return the install that runs; None for none."""
    active = target.status.active_operation
    return active if active is not None and active.kind == OperationKind.HOST_REPLACE else None


def plan_reference(
    machine: ContainerCloudMachine,
    target: Machine | None,
    profiles: Iterable[BareMetalHostProfile],
    layouts: Iterable[str],
) -> dict[str, Any] | None:
    """Return the change of `spec.pxe` that gives the Machine of a host its MachineProfile; None if it stays.

    A change counts at the next install: it waits for the end of one that runs.

    Args:
        layouts: names of the MachineProfiles that exist.
    """
    execution, pxe = machine.status.execution, None if target is None else target.spec.pxe
    if target is None or pxe is None or execution is None or execution.stage == MachineStage.RELEASING:
        return None
    if _installing(target) is not None:
        return None
    chosen = choose_profile(machine, profiles)
    wanted = None if chosen.profile is None else layout_name(chosen.profile)
    if chosen.fault is not None or wanted == _reference(target) or (wanted is not None and wanted not in layouts):
        return None
    if wanted is None:
        return {"profileRef": None}
    return {"profileRef": {"name": wanted}, "rootDeviceHints": None, "targetDisk": None}  # these exclude each other


def _reference(target: Machine) -> str | None:
    pxe = target.spec.pxe
    return None if pxe is None or pxe.profile_ref is None else pxe.profile_ref.name
