"""Misbehaviours of the host, as far as its BMC shows it, and of what it boots.

Resets, reports of the power, boot overrides, events of changes; disks, network cards and agents of installed hosts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded_lab.bmc.faults import RESET_TYPES, BmcFaults
from unbounded_lab.faults import FOR_EVER

GB: Final = 1_000_000_000


def _without(*reset_types: str) -> tuple[str, ...]:
    return tuple(name for name in RESET_TYPES if name not in reset_types)


# Power actions


def accepts_and_does_nothing(faults: BmcFaults) -> BmcFaults:
    """Resets are answered with success and never carried out.

    NVIDIA/infra-controller#595 (Lenovo), redhat-performance/jetlag#245 (Dell).
    """
    return replace(faults, deaf_resets=FOR_EVER)


def accepts_and_does_nothing_twice(faults: BmcFaults) -> BmcFaults:
    """The first two resets are answered with success and not carried out; the third works.

    The passing form of the above.
    """
    return replace(faults, deaf_resets=2)


def refuses_what_is_so_already(faults: BmcFaults) -> BmcFaults:
    """A reset into the state that the host is in is an error 409.

    cybozu-go/neco#1520 (iDRAC: PSU501, "Server is already powered ON").
    """
    return replace(faults, already_status=409)


def bad_request_when_so_already(faults: BmcFaults) -> BmcFaults:
    """A reset into the state that the host is in is an error 400.

    goldyfruit/ansible-ilo#1 (iLO: InvalidOperationForSystemState), apache/cloudstack#12921 (iLO).
    """
    return replace(faults, already_status=400)


def reset_fails_inside(faults: BmcFaults) -> BmcFaults:
    """The first two resets are answered with 500 InternalError and not carried out.

    RackHD/RackHD#382 (a listed reset type without an implementation).
    """
    return replace(faults, failing_resets=2)


def no_allowable_values(faults: BmcFaults) -> BmcFaults:
    """The Reset action does not list its reset types.

    stmcginnis/gofish#279 (HP Gen9, iLO 4).
    """
    return replace(faults, reset_types_shown="nowhere")


def allowable_values_in_action_info_only(faults: BmcFaults) -> BmcFaults:
    """The reset types are in the ActionInfo resource and not in the action.

    ibm-openbmc/bmcweb#522 (OpenBMC); FuturFusion/operations-center#1012 tries both places.
    """
    return replace(faults, reset_types_shown="action-info")


def no_graceful_shutdown(faults: BmcFaults) -> BmcFaults:
    """There is no orderly shutdown: neither GracefulShutdown nor GracefulRestart is known.

    RackHD/RackHD#382; quadsproject/badfish#66 (14th generation Dell, without GracefulRestart).
    """
    return replace(faults, reset_types=_without("GracefulShutdown", "GracefulRestart"))


def no_force_off(faults: BmcFaults) -> BmcFaults:
    """Power cannot be taken at once: neither ForceOff nor PowerCycle is known.

    No thread names this one; ibm-openbmc/bmcweb#522 took ForceRestart away for the same reason (hosts that must shut
    down in order), and Lenovo hosts lack PushPowerButton (ironcore-dev/metal-operator#129).
    """
    return replace(faults, reset_types=_without("ForceOff", "PowerCycle", "ForceRestart"))


def task_that_succeeds_slowly(faults: BmcFaults) -> BmcFaults:
    """A reset is answered with 202 and a Task, and carried out when that ends.

    device-management-toolkit/console#679, lenovo/powershell-redfish-lenovo#76.
    """
    return replace(faults, reset_task="succeeds")


def task_that_fails(faults: BmcFaults) -> BmcFaults:
    """A reset is answered with 202, and its Task ends in Exception without effect.

    No thread names this one; it is the failure that the Redfish specification (DSP0266) has for asynchronous
    operations.
    """
    return replace(faults, reset_task="fails")


def task_that_vanishes(faults: BmcFaults) -> BmcFaults:
    """A reset is answered with 202; it is carried out, and the Task and its monitor are gone (404) when it ends.

    ironcore-dev/metal-operator#668 (iLO), dell/dellemc-openmanage-ansible-modules#420 (iDRAC 9).
    """
    return replace(faults, reset_task="vanishes")


# Power and boot


def os_ignores_shutdown(faults: BmcFaults) -> BmcFaults:
    """The operating system does not react to the power button: an orderly shutdown never ends.

    ironcore-dev/metal-operator#129 (a host stuck in a failed network boot), v1k0d3n/kubevirt-redfish#3.
    """
    return replace(faults, ignores_shutdown=True)


def switches_itself_on_again(faults: BmcFaults) -> BmcFaults:
    """A host that was switched off comes back on by itself after 3 s.

    openbmc/openbmc#2454 (power restore policy applied after a hard power off).
    """
    return replace(faults, comes_back_s=3.0)


def lies_about_power(faults: BmcFaults) -> BmcFaults:
    """For 10 s after a reset, PowerState shows the state from before it.

    tinkerbell/pbnj#127 (ASRock), tinkerbell/rufio#13.
    """
    return replace(faults, power_lie_s=10.0)


def stale_power(faults: BmcFaults) -> BmcFaults:
    """PowerState is read from the host every 5 s and shown from memory in between.

    xcat2/xcat-core#3966 (the state had to be queried until it was really off), openbmc/bmcweb#12.
    """
    return replace(faults, power_cache_s=5.0)


def hides_transitions(faults: BmcFaults) -> BmcFaults:
    """PowerState has On and Off only: On until the host is off, On from the request to start.

    ibm-openbmc/dev#2619 (OpenBMC before 2021).
    """
    return replace(faults, transitions="hidden")


def null_power_in_transition(faults: BmcFaults) -> BmcFaults:
    """PowerState is null while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(faults, transitions="null")


def no_power_in_transition(faults: BmcFaults) -> BmcFaults:
    """PowerState is absent while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(faults, transitions="absent")


def unknown_power_in_transition(faults: BmcFaults) -> BmcFaults:
    """PowerState is "Unknown", which the schema does not know, while the power changes.

    tinkerbell/rufio#13 (states that a client has no word for).
    """
    return replace(faults, transitions="unknown")


def odd_power_in_transition(faults: BmcFaults) -> BmcFaults:
    """PowerState is "Starting", which the schema does not know, while the power changes.

    ibm-openbmc/bmcweb#221 (found in review).
    """
    return replace(faults, transitions="starting")


def empty_system_in_transition(faults: BmcFaults) -> BmcFaults:
    """The system is answered with 200 and an empty body while its power changes.

    device-management-toolkit/console#1051.
    """
    return replace(faults, empty_in_transition=True)


def boot_override_dropped(faults: BmcFaults) -> BmcFaults:
    """A PATCH of the boot override is answered with success and forgotten.

    NVIDIA/infra-controller#505 (Supermicro), metal3-io/baremetal-operator#2691.
    """
    return replace(faults, override="dropped")


def boot_override_not_followed(faults: BmcFaults) -> BmcFaults:
    """The boot override is kept and shown, and the firmware boots from disk all the same.

    redhat-performance/jetlag#18 (Supermicro), NVIDIA/infra-controller#5201.
    """
    return replace(faults, ignores_override=True)


def boot_override_refused(faults: BmcFaults) -> BmcFaults:
    """The boot override cannot be written: 405.

    ibm-openbmc/dev#3277 (removed for PowerVM hosts).
    """
    return replace(faults, override="refused")


def boot_override_stays(faults: BmcFaults) -> BmcFaults:
    """Once is taken for Continuous: the host boots from the network again and again.

    The emulator of OpenStack's sushy-tools 2.2.0 answers so; on hardware it makes a host install itself in a loop.
    """
    return replace(faults, override="continuous")


def boot_override_fails_when_off(faults: BmcFaults) -> BmcFaults:
    """The boot override of a host that is off cannot be written: 500.

    DMTF/Redfish-Tacklebox#143.
    """
    return replace(faults, override="fails-when-off")


def no_uefi_http(faults: BmcFaults) -> BmcFaults:
    """The boot override has no target UefiHttp.

    xcat2/xcat2-task-management#518 (OpenBMC on POWER9).
    """
    return replace(faults, boot_targets=tuple(target for target in faults.boot_targets if target != "UefiHttp"))


def boot_mode_reverts(faults: BmcFaults) -> BmcFaults:
    """A PATCH of the override that does not name the mode sets it to Legacy.

    DMTF/Redfishtool#106 (Supermicro), ironcore-dev/metal-operator#607.
    """
    return replace(faults, override_mode_reverts=True)


# Events


def sends_events(faults: BmcFaults) -> BmcFaults:
    """No fault: an EventService streams an event of each change of the power at once.

    openbmc/bmcweb#282 (the stream of OpenBMC, which requires its media type in Accept).
    """
    return replace(faults, event_service="works")


def events_late(faults: BmcFaults) -> BmcFaults:
    """Each event is sent 20 s after the change.

    No thread names this one; it is longer than a host needs to change its power twice.
    """
    return replace(faults, event_service="works", event_delay_s=20.0)


def events_twice(faults: BmcFaults) -> BmcFaults:
    """Each event is sent twice, with the same id.

    No thread names this one; DSP0266 promises no single delivery.
    """
    return replace(faults, event_service="works", event_copies=2)


def events_out_of_order(faults: BmcFaults) -> BmcFaults:
    """The events of 4 s are sent together, the newest first.

    No thread names this one; DSP0266 promises no order.
    """
    return replace(faults, event_service="works", event_reversed_s=4.0)


def events_never(faults: BmcFaults) -> BmcFaults:
    """The stream is accepted and stays empty.

    Dell's guide of iDRAC9 4.20: its stream has metric reports only, without a filter for others.
    """
    return replace(faults, event_service="mute")


def event_stream_ends(faults: BmcFaults) -> BmcFaults:
    """The BMC closes each stream of events after 3 s.

    Dell's guide of iDRAC9 4.20 tells clients how long to wait before they open a closed stream again.
    """
    return replace(faults, event_service="works", event_stream_s=3.0)


def event_streams_taken(faults: BmcFaults) -> BmcFaults:
    """All streams of events are taken by others: another one is answered with 503.

    Dell's guide of OpenManage Enterprise 3.9: at most eight subscribers and streams together.
    """
    return replace(faults, event_service="works", event_streams=0)


def events_without_links(faults: BmcFaults) -> BmcFaults:
    """OriginOfCondition is the path as text instead of a link.

    Dell's guide of OpenManage Enterprise 3.9.
    """
    return replace(faults, event_service="works", event_origin="text")


def events_without_origin(faults: BmcFaults) -> BmcFaults:
    """Events have no OriginOfCondition, which is optional.

    Lenovo's guide of XClarity Controller: the origin stands in its Oem object.
    """
    return replace(faults, event_service="works", event_origin="absent")


def events_in_many_lines(faults: BmcFaults) -> BmcFaults:
    """The data of an event has many lines.

    Lenovo's guide of XClarity Controller.
    """
    return replace(faults, event_service="works", event_lines="many")


# Installs


def small_disks(faults: BmcFaults) -> BmcFaults:
    """The disks have 1 GB each, although the BMC reports 960 GB.

    The project's own tests: a drive that was clipped by its host protected area.
    """
    return replace(faults, disk_bytes=GB)


def nic_vanishes(faults: BmcFaults) -> BmcFaults:
    """The second network card is missing in the installer's report, although the BMC shows it.

    The project's own tests: a card whose firmware has hung.
    """
    return replace(faults, lost_nics=1)


def second_client(faults: BmcFaults) -> BmcFaults:
    """Another client takes part in each boot of the installer, from another address.

    The project's own tests: a boot URL that was copied.
    """
    return replace(faults, second_client=True)


def agent_never_joins(faults: BmcFaults) -> BmcFaults:
    """The host is installed and starts, and its agent does not join the cluster while this lasts.

    The project's own tests: an agent that was masked by another configuration.
    """
    return replace(faults, never_joins=True)
