"""Obstacles and losses that an operation would meet after its start, from what its executor checks first.

For bare metal, these are the Secret of the BMC, and what metalman has reported of the image and of serving it. The host
itself cannot be checked from here; `unchecked` lists that. For a cloud, they come from the provider's own code:
rejections, stages, and losses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.core import Secret
from unbounded.api.failures import Failure
from unbounded.api.hardware import HardwareSource, HardwareStatus
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode, SecretKeySelector
from unbounded.api.machine_status import pcr_text
from unbounded.api.meta import Condition
from unbounded.api.names import NAMESPACE, PCRPolicy
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.api.profile import MachineProfile
from unbounded.explain.conditions import TABLE, condition
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.fixes import fixes_for
from unbounded.explain.links import PLUGIN, Fix
from unbounded.kube.api import Api
from unbounded.kube.options import SettingsError
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import ExecutorKind, provider_of
from unbounded.operations.parameters import accepted_pcrs, erased_disks
from unbounded.plan.effects import stages
from unbounded.plan.model import MachineForecast, Obstacle, OperationForecast, PlannedLoss, StageLine

if TYPE_CHECKING:
    from unbounded.machineops.provider import Loss, Provider


Secrets = Mapping[SecretKeySelector, Secret | None]
_BOOTING: Final = (
    OperationKind.HOST_REPLACE,
    OperationKind.HOST_INSPECT,
    OperationKind.HOST_ERASE,
    OperationKind.HOST_RESCUE,
)
Profiles = Mapping[str, MachineProfile | None]  # by name; None for one that does not exist
NO_PROFILES: Final[Profiles] = {}


def password_refs(planned: OperationForecast, facts: ExplainFacts) -> tuple[SecretKeySelector, ...]:
    """Return the Secrets with the passwords of the BMCs, each once."""
    machines = (facts.machines[one.machine] for one in planned.targets if _is_of(one, ExecutorKind.METALMAN))
    return tuple(dict.fromkeys(map(_reference, machines)))


def _reference(machine: Machine) -> SecretKeySelector:
    from unbounded.metalman.bmc_access import redfish_of  # noqa: PLC0415  # only for operations of its own

    return redfish_of(machine).password_ref


def profile_names(planned: OperationForecast, facts: ExplainFacts) -> tuple[str, ...]:
    """Return the MachineProfiles of the targets of a HostReplace, each once."""
    if planned.kind != OperationKind.HOST_REPLACE:
        return ()
    machines = (facts.machines[one.machine] for one in planned.targets if _is_of(one, ExecutorKind.METALMAN))
    references = (None if machine.spec.pxe is None else machine.spec.pxe.profile_ref for machine in machines)
    return tuple(dict.fromkeys(reference.name for reference in references if reference is not None))


def with_obstacles(
    planned: OperationForecast,
    operation: MachineOperation,
    facts: ExplainFacts,
    secrets: Secrets | None,
    profiles: Profiles = NO_PROFILES,
) -> OperationForecast:
    """Return the plan with the obstacles on each Machine, and with what was not checked."""
    targets = tuple(
        replace(
            one,
            obstacles=tuple(_obstacles(operation, facts.machines[one.machine], facts, secrets or {}, profiles)),
            disk=_disk(operation, facts.machines[one.machine], profiles),
            boot=_boot(operation, facts.machines[one.machine]),
            network=_network(operation, facts.machines[one.machine]),
            reference=_reference_boot(operation, facts.machines[one.machine]),
        )
        if _is_of(one, ExecutorKind.METALMAN)
        else one
        for one in planned.targets
    )
    planned = replace(planned, targets=targets)
    unchecked = (
        *(fact.text for fact in facts.unread),
        *_of_secrets(password_refs(planned, facts), secrets),
        *_uninspected(planned, facts),
        *_unobservable(planned),
    )
    return replace(planned, unchecked=unchecked)


def _is_of(one: MachineForecast, executor: ExecutorKind) -> bool:
    return not one.refused and one.executor.partition("/")[0] == executor


def _obstacles(
    operation: MachineOperation, machine: Machine, facts: ExplainFacts, secrets: Secrets, profiles: Profiles
) -> Iterator[Obstacle]:
    """Yield obstacles in the order of the procedure, which waits for an image before it calls the BMC."""
    if operation.spec.operation_kind in _BOOTING:
        yield from _of_boot(machine, facts)
        for fault in _boot_refusals(operation, machine):
            yield Obstacle(f"machine/{machine.name}", str(fault), fault.reason)
    if refusal := _profile_refusal(machine, profiles):
        yield Obstacle(f"machine/{machine.name}", str(refusal), refusal.reason)
    if (refusal := _refusal(machine, secrets)) is not None:
        fixes = fixes_for(refusal.reason, machine, operation, facts)
        yield Obstacle(f"machine/{machine.name}", str(refusal), refusal.reason, fixes)


def _disk(operation: MachineOperation, machine: Machine, profiles: Profiles) -> str:
    """Return the disk or the layout that metalman would choose by the last inspection, or why it would choose none.

    The install chooses by an inspection of its own.
    """
    from unbounded.metalman.disk_choice import SECTORS, ChosenDisk, DiskSelection, choose_disk  # noqa: PLC0415  # as above
    from unbounded.metalman.netboot.installs import profile_name, tpm_obstacle  # noqa: PLC0415

    if operation.spec.operation_kind != OperationKind.HOST_REPLACE:
        return ""
    hardware = _inspection(machine)
    if hardware is None:
        name = profile_name(machine)
        is_missing = name in profiles and profiles[name] is None
        return f"it writes no disk: there is no MachineProfile {name}" if is_missing else ""
    if missing := tpm_obstacle(machine, hardware):
        return f"with the hardware of {hardware.at}, it writes no disk: {missing}"
    if profile_name(machine):
        return f"with the hardware of {hardware.at}, it writes {_layout(operation, machine, hardware, profiles)}"
    selection = DiskSelection.of(machine, erased_disks(operation))
    choice = choose_disk(hardware.disks, selection, sectors=SECTORS)  # the image is not read here
    if isinstance(choice, ChosenDisk):
        size = f"{(choice.disk.size_bytes or 0) // 1_000_000} MB"
        erases = (
            "" if choice.erasure is None else f" and erases what is on it: {choice.erasure.contents or 'unknown data'}"
        )
        return f"with the hardware of {hardware.at}, it writes {choice.path} ({choice.disk.name}, {size}){erases}"
    return f"with the hardware of {hardware.at}, it writes no disk: {choice.message}"


def _inspection(machine: Machine) -> HardwareStatus | None:
    """Return the last inspection by an installer; a BMC does not see what is on a disk."""
    hardware = machine.status.hardware
    return hardware if hardware is not None and hardware.source == HardwareSource.INSTALLER else None


def _layout(operation: MachineOperation, machine: Machine, hardware: HardwareStatus, profiles: Profiles) -> str:
    """Return the layout that metalman would compile, as text for people, or why it would compile none."""
    from unbounded.api.profile_check import SCRIPT_FLAG, commands_in  # noqa: PLC0415
    from unbounded.metalman.layout.compiler import compile_layout  # noqa: PLC0415
    from unbounded.metalman.layout.model import DiskLayout, LayoutImage, summary  # noqa: PLC0415
    from unbounded.metalman.netboot.installs import (  # noqa: PLC0415  # as above
        boots_signed_image,
        layout_request,
        profile_name,
    )

    name = profile_name(machine)
    if name not in profiles:
        return f"what MachineProfile {name} says, which you have no permission to read"
    profile = profiles[name]
    if profile is None:
        return f"no disk: there is no MachineProfile {name}"
    # whether metalman runs commands is in its flags alone
    image = LayoutImage(boots_signed_image(machine))  # the size of its loader is known to metalman alone
    request = layout_request(machine, profile, "", erased_disks(operation), image, allow_scripts=True)
    choice = compile_layout(request, hardware.disks)
    if not isinstance(choice, DiskLayout):
        return f"no disk: {choice.message}"
    commands = ", ".join(f"spec.{place}" for place in commands_in(profile.spec))
    refused = f"  has commands ({commands}): a metalman without {SCRIPT_FLAG} refuses it, and runs none of them"
    erased = [f"  erases what is on {one.serial_number}: {one.contents or 'unknown data'}" for one in choice.erasures]
    return "\n".join((*summary(choice), *([refused] if commands else []), *erased))


def _network(operation: MachineOperation, machine: Machine) -> str:
    """Return where the installed system gets its network from, or which network cards it lacks."""
    from unbounded.metalman.host_network import missing_nics  # noqa: PLC0415  # as above

    pxe = machine.spec.pxe
    if operation.spec.operation_kind != OperationKind.HOST_REPLACE or pxe is None:
        return ""
    if machine.spec.network is not None:
        facts = _inspection(machine)
        missing = "" if facts is None else missing_nics(machine.spec.network, facts.nics)
        if facts is not None and missing:
            return f"with the hardware of {facts.at}, it writes no disk: {missing}"
        return "the installed system gets the network of spec.network"
    reference = None if pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
    if reference is None:
        return ""
    return (
        f"the installed system gets the network of ConfigMap {reference.namespace}/{reference.name}, "
        f"key {reference.key}, and is not installed without it"
    )


_DEVIATES: Final = {
    PCRPolicy.REQUIRED: "gets no token",
    PCRPolicy.RECORDED: "is reported",
    None: "is reported, or gets no token, as --pcr-policy of its metalman says",
}


def _reference_boot(operation: MachineOperation, machine: Machine) -> str:
    """Return the boot that the PCRs of the installed system are compared with, and what follows a deviation."""
    reference = machine.status.tpm.reference if machine.status.tpm is not None else None
    if operation.spec.operation_kind != OperationKind.HOST_REPLACE or reference is None:
        return ""
    attestation = machine.spec.pxe.attestation if machine.spec.pxe is not None else None
    named = attestation.pcr_policy if attestation is not None else None
    accepted = ", ".join(map(pcr_text, sorted(accepted_pcrs(operation))))
    text = f"a boot that deviates from the reference of {reference.at} {_DEVIATES[PCRPolicy(named) if named else None]}"
    return f"{text}, unless only in {accepted}, which it accepts once" if accepted else text


def _boot_refusals(operation: MachineOperation, machine: Machine) -> Iterator[Refusal]:
    """Yield metalman's rejections of the Machine's image and network."""
    from unbounded.metalman.netboot.installs import image_refusal, network_refusal  # noqa: PLC0415  # as above

    installs = operation.spec.operation_kind == OperationKind.HOST_REPLACE
    image = image_refusal(machine, installs=True) if installs else None
    yield from filter(None, (image, network_refusal(machine, installs=installs)))


def _profile_refusal(machine: Machine, profiles: Profiles) -> Refusal | None:
    """Return metalman's rejection of the profile of a HostReplace; None where there is none, or it was not read."""
    from unbounded.metalman.netboot.installs import profile_refusal  # noqa: PLC0415  # as above

    reference = None if machine.spec.pxe is None else machine.spec.pxe.profile_ref
    profile = None if reference is None else profiles.get(reference.name)
    return None if profile is None else profile_refusal(machine, profile)


def _boot(operation: MachineOperation, machine: Machine) -> str:
    """Return the source from which the host boots the installer, if that is not the network."""
    pxe = machine.spec.pxe
    if operation.spec.operation_kind not in _BOOTING or pxe is None or pxe.boot_mode != BootMode.VIRTUAL_MEDIA:
        return ""
    return "it boots the installer from a CD image that its BMC fetches from metalman, ejected at the end"


def _refusal(machine: Machine, secrets: Secrets) -> Refusal | None:
    """Return metalman's rejection of the Secret; None for one that it can use, or that was not read."""
    from unbounded.metalman.bmc_access import no_secret, password_of  # noqa: PLC0415  # as above

    reference = _reference(machine)
    if reference not in secrets:
        return None
    secret = secrets[reference]
    if secret is None:
        return no_secret(reference)
    try:
        password_of(machine, secret)
    except Refusal as refusal:
        return refusal
    return None


def _of_boot(machine: Machine, facts: ExplainFacts) -> Iterator[Obstacle]:
    """Yield the problems that metalman has reported of the image and of the last boot that it served."""
    from unbounded.metalman.replace_observation import is_image_ready  # noqa: PLC0415  # as above

    ready = condition(machine, ConditionType.NETBOOT_IMAGE_READY)
    if ready is None:
        yield _not_served(machine, facts)
    elif not is_image_ready(machine):
        yield _condition_obstacle(machine, ready)
    served = condition(machine, ConditionType.NETBOOT_SERVED)
    if served is not None and served.status != ConditionStatus.TRUE:
        yield _condition_obstacle(machine, served)


def _not_served(machine: Machine, facts: ExplainFacts) -> Obstacle:
    fix = Fix("unbounded up --pxe-interface NAME", "serves network boots; add its present flags")
    if not facts.embedded:
        fix = Fix(
            f"{PLUGIN} site deploy-pxe --site {machine.site or 'SITE'}",
            "deploys one that serves network boots in the site",
        )
    return Obstacle(
        f"machine/{machine.name}",
        f"no metalman has reported its image (condition {ConditionType.NETBOOT_IMAGE_READY}), as one that "
        "serves network boots does: without one, the operation is rejected, or waits without end",
        fixes=(fix,),
    )


def _condition_obstacle(machine: Machine, condition: Condition) -> Obstacle:
    row = next((row for row in TABLE if row.fits(condition)), None)
    observation, now = condition.observed_generation, machine.metadata.generation
    of_old = (
        f", of an earlier spec (generation {observation} of {now})" if condition.status == ConditionStatus.TRUE else ""
    )
    return Obstacle(
        f"machine/{machine.name}",
        f"condition {condition.type}={condition.status} ({condition.reason}){of_old}: {condition.message}",
        fixes=() if row is None else row.fixes(machine, condition),
    )


def _of_secrets(desired: Sequence[SecretKeySelector], secrets: Secrets | None) -> Iterator[str]:
    """Yield Secrets that could not be checked: the user may not read them, or metalman's rights there are unknown.

    Args:
        secrets: None where none is read.
    """
    if secrets is None:
        yield from (f"Secret {ref.namespace}/{ref.name}: this server does not read it" for ref in desired)
        return
    yield from (
        f"you have no permission to read Secret {ref.namespace}/{ref.name}" for ref in desired if ref not in secrets
    )
    for namespace in sorted({ref.namespace for ref in desired if secrets.get(ref) is not None} - {NAMESPACE}):
        yield f"whether metalman may read Secrets in namespace {namespace}, as it may in {NAMESPACE}"


def _uninspected(planned: OperationForecast, facts: ExplainFacts) -> Iterator[str]:
    """Yield the Machines whose disks are not forecast, as no installer has reported their hardware."""
    if planned.kind != OperationKind.HOST_REPLACE:
        return
    names = [
        one.machine
        for one in planned.targets
        if _is_of(one, ExecutorKind.METALMAN) and _inspection(facts.machines[one.machine]) is None
    ]
    if names:
        yield (
            f"which disk is written on {_first(names)}, as no installer has reported the "
            f"hardware: `kubectl unbounded machine inspect {names[0]}` does that, and writes nothing"
        )


def _unobservable(planned: OperationForecast) -> Iterator[str]:
    """Yield facts that are in no API object."""
    if any(_is_of(one, ExecutorKind.METALMAN) for one in planned.targets):
        yield "whether the BMC answers, accepts the password and presents the trusted certificate"
        if any(one.boot for one in planned.targets):
            yield "whether metalman serves boot images, and the BMC fetches one and starts its host from it"
        elif planned.kind == OperationKind.HOST_REPLACE:
            yield "whether the host boots from the network, and reaches metalman there"
        if planned.kind == OperationKind.HOST_REPLACE:
            yield "whether the image fits the disk, in size and sector size: metalman alone reads it"
    if any(_is_of(one, ExecutorKind.CLOUD) for one in planned.targets):
        yield CLOUD_UNCHECKED


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"


SHOWN_NAMES: Final = 3
QUERIED_TARGETS: Final = 20  # targets for which the cloud is called
CLOUD_UNCHECKED: Final = "whether the provider accepts the login, and has the instance"
NOT_CALLED: Final = "the cloud was not called"
BEYOND: Final = f"{NOT_CALLED}: a plan calls it for the first {QUERIED_TARGETS} Machines"

Providers = Mapping[str, "Provider | str"]  # by name; the reason in place of one that is not installed here


async def providers_of(planned: OperationForecast, *, loads: bool = True) -> Providers:
    """Load the providers of the plan's targets."""
    names = sorted({name for one in planned.targets if (name := _provider(one))})
    if not loads:
        return dict.fromkeys(names, "this server loads no providers")
    return {name: await asyncio.to_thread(_loaded, name) for name in names}


def _loaded(name: str) -> Provider | str:
    from unbounded.machineops.installed_providers import load  # noqa: PLC0415  # SDKs come with a provider

    try:
        return load(name)
    except SettingsError as error:
        return str(error)


def with_refusals(
    planned: OperationForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers
) -> OperationForecast:
    """Return the plan with what providers reject before they call their clouds, and with notes on missing providers.
    Pure.
    """
    targets = tuple(_with_refusal(one, operation, facts, providers) for one in planned.targets)
    unknown = (
        f"whether provider {name} supports it with these parameters, and its stages: {found}"
        for name, found in providers.items()
        if isinstance(found, str)
    )
    there = planned.stages or _stages(operation, list(providers.values()))
    return replace(planned, targets=targets, stages=there, unchecked=(*planned.unchecked, *unknown))


async def with_losses(
    planned: OperationForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers, api: Api
) -> OperationForecast:
    """Return the plan with the losses that the clouds report, and with the reasons for which others are unknown.

    Clouds are called for the first QUERIED_TARGETS targets, with the credentials that the reader of the plan may read.
    """
    if planned.kind != OperationKind.HOST_REPLACE:
        return planned
    queried = [await _with_losses(one, operation, facts, providers, api) for one in planned.targets[:QUERIED_TARGETS]]
    others = planned.targets[QUERIED_TARGETS:]
    unknown: dict[str, list[str]] = {}
    for one, why in (*queried, *((one, BEYOND) for one in others if _provider(one))):
        if why:
            unknown.setdefault(why, []).append(one.machine)
    lines = tuple(f"the losses of {_first(names)}: {why}" for why, names in unknown.items())
    found = tuple(one for one, _ in queried)
    is_called = not lines and not any(one.fails_at_once for one in planned.targets if _provider(one))
    unchecked = tuple(one for one in planned.unchecked if one != CLOUD_UNCHECKED or not is_called)
    return replace(planned, targets=(*found, *others), unchecked=(*unchecked, *lines))


async def _with_losses(
    one: MachineForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers, api: Api
) -> tuple[MachineForecast, str]:
    """Return the outlook of a target with its losses, or the reason why they are unknown."""
    provider = providers.get(_provider(one) or "")
    if provider is None or one.fails_at_once:
        return one, ""
    if isinstance(provider, str):
        return one, f"{NOT_CALLED}: {provider}"
    from unbounded.machineops.preflight import NoLogin, preview_losses  # noqa: PLC0415  # only for its own operations
    from unbounded.machineops.provider import check_losses  # noqa: PLC0415  # as above
    from unbounded.machineops.sanitize import sanitize_failures, status_losses  # noqa: PLC0415

    losses: tuple[Loss, ...] = ()
    machine = facts.machines[one.machine]
    try:
        with sanitize_failures():
            losses = await preview_losses(api, provider, operation, machine)
            check_losses(losses, operation.spec.parameters, one.machine)
    except Refusal as refusal:
        fixes = fixes_for(refusal.reason, machine, operation, facts)
        obstacle = Obstacle(f"machine/{one.machine}", str(refusal), refusal.reason, fixes)
        one = replace(one, obstacles=(*one.obstacles, obstacle))
    except NoLogin as failure:
        return one, f"{NOT_CALLED}: {failure}"
    except (Failure, ValueError) as failure:
        return one, str(failure)
    reported = status_losses(losses)
    found = (PlannedLoss(each.field, each.consequence, bool(each.lessens_security)) for each in reported)
    return replace(one, losses=tuple(found)), ""


def _provider(one: MachineForecast) -> str | None:
    return None if one.refused else provider_of(one.executor)


def _with_refusal(
    one: MachineForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers
) -> MachineForecast:
    from unbounded.machineops.preflight import preflight_refusal  # noqa: PLC0415  # only for operations of its own

    provider = providers.get(_provider(one) or "")
    if provider is None or isinstance(provider, str):
        return one
    machine = facts.machines[one.machine]
    refusal = preflight_refusal(provider, operation, machine)
    if refusal is None:
        return one
    asks_for_it_otherwise = refusal.reason == reasons.INVALID_PARAMETERS  # the message explains the parameters, too
    fixes = () if asks_for_it_otherwise else fixes_for(refusal.reason, machine, operation, facts)
    return replace(
        one, obstacles=(*one.obstacles, Obstacle(f"machine/{one.machine}", str(refusal), refusal.reason, fixes))
    )


def _stages(operation: MachineOperation, providers: Sequence[Provider | str]) -> tuple[StageLine, ...]:
    """Return the stages of the one provider; none where there are several, as they differ."""
    from unbounded.machineops.preflight import procedure_of  # noqa: PLC0415  # as above

    if len(providers) != 1 or isinstance(providers[0], str):
        return ()
    try:
        return stages(procedure_of(providers[0], operation))
    except Refusal:
        return ()


# None for one that does not exist; without those that the user may not read
