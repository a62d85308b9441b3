"""Misbehaviours of BMCs, each as a turn of the dials, with the place where it was seen.

`owner/repository#number` is a thread on GitHub (an issue or a pull request). Where no public thread is named, the
docstring says where else it comes from. Misbehaviours can be combined: each turns only its own dials.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from unbounded.lab.bmc.dials import RESET_TYPES, Dials
from unbounded.lab.dials import FOR_EVER

Turn = Callable[[Dials], Dials]

MISBEHAVIOURS: Final[dict[str, Turn]] = {}
"""By name, in the order of this file; the name of a function with dashes for underscores."""


def seen_in_the_field(turn: Turn) -> Turn:
    MISBEHAVIOURS[turn.__name__.replace("_", "-")] = turn
    return turn


def summary(name: str) -> str:
    """The first line of a misbehaviour's description."""
    return description(name).partition("\n")[0]


def description(name: str) -> str:
    return inspect.getdoc(MISBEHAVIOURS[name]) or ""


def _without(*reset_types: str) -> tuple[str, ...]:
    return tuple(name for name in RESET_TYPES if name not in reset_types)


# Power actions


@seen_in_the_field
def accepts_and_does_nothing(dials: Dials) -> Dials:
    """Resets are answered with success and never carried out.

    NVIDIA/infra-controller#595 (Lenovo), redhat-performance/jetlag#245 (Dell).
    """
    return replace(dials, deaf_resets=FOR_EVER)


@seen_in_the_field
def accepts_and_does_nothing_twice(dials: Dials) -> Dials:
    """The first two resets are answered with success and not carried out; the third works.

    The passing form of the above.
    """
    return replace(dials, deaf_resets=2)


@seen_in_the_field
def refuses_what_is_so_already(dials: Dials) -> Dials:
    """A reset into the state that the host is in is an error 409.

    cybozu-go/neco#1520 (iDRAC: PSU501, "Server is already powered ON").
    """
    return replace(dials, already_status=409)


@seen_in_the_field
def bad_request_when_so_already(dials: Dials) -> Dials:
    """A reset into the state that the host is in is an error 400.

    goldyfruit/ansible-ilo#1 (iLO: InvalidOperationForSystemState), apache/cloudstack#12921 (iLO).
    """
    return replace(dials, already_status=400)


@seen_in_the_field
def reset_fails_inside(dials: Dials) -> Dials:
    """The first two resets are answered with 500 InternalError and not carried out.

    RackHD/RackHD#382 (a listed reset type that nobody had implemented).
    """
    return replace(dials, failing_resets=2)


@seen_in_the_field
def no_allowable_values(dials: Dials) -> Dials:
    """The Reset action does not say which reset types it takes.

    stmcginnis/gofish#279 (HP Gen9, iLO 4).
    """
    return replace(dials, reset_types_shown="nowhere")


@seen_in_the_field
def allowable_values_in_action_info_only(dials: Dials) -> Dials:
    """The reset types stand in the ActionInfo resource and not at the action.

    ibm-openbmc/bmcweb#522 (OpenBMC); FuturFusion/operations-center#1012 tries both places.
    """
    return replace(dials, reset_types_shown="action-info")


@seen_in_the_field
def no_graceful_shutdown(dials: Dials) -> Dials:
    """There is no orderly shutdown: neither GracefulShutdown nor GracefulRestart is known.

    RackHD/RackHD#382; quadsproject/badfish#66 (14th generation Dell, without GracefulRestart).
    """
    return replace(dials, reset_types=_without("GracefulShutdown", "GracefulRestart"))


@seen_in_the_field
def no_force_off(dials: Dials) -> Dials:
    """Power cannot be taken at once: neither ForceOff nor PowerCycle is known.

    No thread names this one; ibm-openbmc/bmcweb#522 took ForceRestart away for the same reason (hosts that must shut
    down in order), and Lenovo hosts lack PushPowerButton (ironcore-dev/metal-operator#129).
    """
    return replace(dials, reset_types=_without("ForceOff", "PowerCycle", "ForceRestart"))


@seen_in_the_field
def task_that_succeeds_slowly(dials: Dials) -> Dials:
    """A reset is answered with 202 and a Task, and carried out when that ends.

    device-management-toolkit/console#679, lenovo/powershell-redfish-lenovo#76.
    """
    return replace(dials, reset_task="succeeds")


@seen_in_the_field
def task_that_fails(dials: Dials) -> Dials:
    """A reset is answered with 202, and its Task ends in Exception without effect.

    No thread names this one; it is the failure that the Redfish specification (DSP0266) has for asynchronous
    operations.
    """
    return replace(dials, reset_task="fails")


@seen_in_the_field
def task_that_vanishes(dials: Dials) -> Dials:
    """A reset is answered with 202; it is carried out, and the Task and its monitor are gone (404) when it ends.

    ironcore-dev/metal-operator#668 (iLO), dell/dellemc-openmanage-ansible-modules#420 (iDRAC 9).
    """
    return replace(dials, reset_task="vanishes")


# The host


@seen_in_the_field
def os_ignores_shutdown(dials: Dials) -> Dials:
    """The operating system does not react to the power button: an orderly shutdown never ends.

    ironcore-dev/metal-operator#129 (a host stuck in a failed network boot), v1k0d3n/kubevirt-redfish#3.
    """
    return replace(dials, ignores_shutdown=True)


@seen_in_the_field
def switches_itself_on_again(dials: Dials) -> Dials:
    """A host that was switched off comes back on by itself after 3 s.

    openbmc/openbmc#2454 (power restore policy applied after a hard power off).
    """
    return replace(dials, comes_back_s=3.0)


# What is said of the power


@seen_in_the_field
def lies_about_power(dials: Dials) -> Dials:
    """For 10 s after a reset, PowerState shows the state from before it.

    tinkerbell/pbnj#127 (ASRock), tinkerbell/rufio#13.
    """
    return replace(dials, power_lie_s=10.0)


@seen_in_the_field
def stale_power(dials: Dials) -> Dials:
    """PowerState is read from the host every 5 s and shown from memory in between.

    xcat2/xcat-core#3966 (the state had to be queried until it was really off), openbmc/bmcweb#12.
    """
    return replace(dials, power_cache_s=5.0)


@seen_in_the_field
def hides_transitions(dials: Dials) -> Dials:
    """PowerState knows On and Off only: On until the host is off, On as soon as it is asked to start.

    ibm-openbmc/dev#2619 (OpenBMC before 2021).
    """
    return replace(dials, transitions="hidden")


@seen_in_the_field
def null_power_in_transition(dials: Dials) -> Dials:
    """PowerState is null while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(dials, transitions="null")


@seen_in_the_field
def no_power_in_transition(dials: Dials) -> Dials:
    """PowerState is absent while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(dials, transitions="absent")


@seen_in_the_field
def unknown_power_in_transition(dials: Dials) -> Dials:
    """PowerState is "Unknown", which the schema does not know, while the power changes.

    tinkerbell/rufio#13 (states that a client has no word for).
    """
    return replace(dials, transitions="unknown")


@seen_in_the_field
def odd_power_in_transition(dials: Dials) -> Dials:
    """PowerState is "Starting", which the schema does not know, while the power changes.

    ibm-openbmc/bmcweb#221 (found in review).
    """
    return replace(dials, transitions="starting")


@seen_in_the_field
def empty_system_in_transition(dials: Dials) -> Dials:
    """The system is answered with 200 and an empty body while its power changes.

    device-management-toolkit/console#1051.
    """
    return replace(dials, empty_in_transition=True)


# Boot override


@seen_in_the_field
def boot_override_dropped(dials: Dials) -> Dials:
    """A PATCH of the boot override is answered with success and forgotten.

    NVIDIA/infra-controller#505 (Supermicro), metal3-io/baremetal-operator#2691.
    """
    return replace(dials, override="dropped")


@seen_in_the_field
def boot_override_not_followed(dials: Dials) -> Dials:
    """The boot override is kept and shown, and the firmware boots from disk all the same.

    redhat-performance/jetlag#18 (Supermicro), NVIDIA/infra-controller#5201.
    """
    return replace(dials, ignores_override=True)


@seen_in_the_field
def boot_override_refused(dials: Dials) -> Dials:
    """The boot override cannot be written: 405.

    ibm-openbmc/dev#3277 (removed for PowerVM hosts).
    """
    return replace(dials, override="refused")


@seen_in_the_field
def boot_override_stays(dials: Dials) -> Dials:
    """Once is taken for Continuous: the host boots from the network again and again.

    The emulator of OpenStack's sushy-tools 2.2.0 answers so; on hardware it makes a host install itself in a loop.
    """
    return replace(dials, override="continuous")


@seen_in_the_field
def boot_override_fails_when_off(dials: Dials) -> Dials:
    """The boot override of a host that is off cannot be written: 500.

    DMTF/Redfish-Tacklebox#143.
    """
    return replace(dials, override="fails-when-off")


@seen_in_the_field
def no_uefi_http(dials: Dials) -> Dials:
    """The boot override has no target UefiHttp.

    xcat2/xcat2-task-management#518 (OpenBMC on POWER9).
    """
    return replace(dials, boot_targets=tuple(target for target in dials.boot_targets if target != "UefiHttp"))


@seen_in_the_field
def boot_mode_reverts(dials: Dials) -> Dials:
    """A PATCH of the override that does not name the mode sets it to Legacy.

    DMTF/Redfishtool#106 (Supermicro), ironcore-dev/metal-operator#607.
    """
    return replace(dials, override_mode_reverts=True)


# Sessions and accounts


@seen_in_the_field
def few_sessions(dials: Dials) -> Dials:
    """At most 8 sessions; the ninth login is answered with 503.

    bb-Ricardo/check_redfish#89, stmcginnis/gofish#75 (iDRAC: RAC0218).
    """
    return replace(dials, session_limit=8)


@seen_in_the_field
def leaked_sessions(dials: Dials) -> Dials:
    """All 8 sessions are taken by others who never close them; basic authentication works.

    bb-Ricardo/check_redfish#198, theforeman/smart-proxy#895.
    """
    return replace(dials, session_limit=8, leaked_sessions=8)


@seen_in_the_field
def no_session_service(dials: Dials) -> Dials:
    """There is no session service (404): basic authentication only.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(dials, session_service="absent")


@seen_in_the_field
def session_service_refuses(dials: Dials) -> Dials:
    """The session service is named but refuses every login with 401; basic authentication works.

    v1k0d3n/proxmox-redfish#42.
    """
    return replace(dials, session_service="refuses")


@seen_in_the_field
def session_ends_midway(dials: Dials) -> Dials:
    """A session is gone (401) after its fifth request, long before its time.

    bb-Ricardo/check_redfish#90 (iDRAC 7 and 8).
    """
    return replace(dials, session_requests=5)


@seen_in_the_field
def locks_out(dials: Dials) -> Dials:
    """Three wrong passwords lock the account for five minutes, for the right one too.

    ibm-openbmc/openbmc#90 (five there), DMTF/Redfish-Protocol-Validator#12, NVIDIA/infra-controller#4978.
    """
    return replace(dials, lockout_after=3)


@seen_in_the_field
def password_expired(dials: Dials) -> Dials:
    """The password is right but has to be changed first: 403 PasswordChangeRequired.

    openbmc/bmcweb#103, NVIDIA/infra-controller#4724.
    """
    return replace(dials, password_expired=True)


# ETags


@seen_in_the_field
def if_match_required(dials: Dials) -> Dials:
    """A PATCH without If-Match is answered with 428.

    DMTF/Redfish-Tacklebox#22, ansible/ansible#56150 (Lenovo).
    """
    return replace(dials, if_match_on_patch="required")


@seen_in_the_field
def if_match_refused(dials: Dials) -> Dials:
    """A PATCH with If-Match is answered with 412, whatever the ETag.

    ansible-collections/community.general#3268, dell/iDRAC-Redfish-Scripting#354.
    """
    return replace(dials, if_match_on_patch="refused")


@seen_in_the_field
def if_match_refused_on_actions(dials: Dials) -> Dials:
    """A POST of an action with If-Match is answered with 412.

    stmcginnis/gofish#510 (iDRAC 10), ironcore-dev/metal-operator#1015.
    """
    return replace(dials, if_match_on_post="refused")


@seen_in_the_field
def weak_etags(dials: Dials) -> Dials:
    """ETags are weak (W/) and are wanted back as they were given.

    ansible-collections/community.general#6434 (Gigabyte), goldyfruit/ansible-ilo#1 (iLO).
    """
    return replace(dials, etags="weak", if_match_on_patch="required")


@seen_in_the_field
def double_quoted_etags(dials: Dials) -> Dials:
    """The ETag header has its quotes twice, the ETag in the resource once; only the latter is taken.

    ansible-collections/community.general#3268.
    """
    return replace(dials, etags="double-quoted", if_match_on_patch="required")


@seen_in_the_field
def no_etags(dials: Dials) -> Dials:
    """There are no ETags.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(dials, etags="none")


# Answers and connections


@seen_in_the_field
def stalls(dials: Dials) -> Dials:
    """Every request takes 30 s to be answered.

    DMTF/Redfishtool#74, NVIDIA/infra-controller#1584 (DGX H100: two to three minutes).
    """
    return replace(dials, stalls=FOR_EVER)


@seen_in_the_field
def acts_late(dials: Dials) -> Dials:
    """Every request waits for 30 s and is then carried out, also when its client has left.

    No thread names this one; it is the worst that a BMC flooded with requests (metal3-io/ironic-image#688) can do.
    """
    return replace(dials, stalls=FOR_EVER, stall_then="acts-after")


@seen_in_the_field
def slow(dials: Dials) -> Dials:
    """Every answer takes 1 to 3 s.

    DMTF/Redfishtool#15 (pages that need the BMC's inner bus), ansible/ansible#52332 (Lenovo SR650).
    """
    return replace(dials, slow_s=(1.0, 3.0))


@seen_in_the_field
def flooded(dials: Dials) -> Dials:
    """More than 5 requests a second are answered with 503.

    metal3-io/ironic-image#688, metal3-io/baremetal-operator#3290.
    """
    return replace(dials, busy_above_per_s=5.0)


@seen_in_the_field
def answers_lost_after_acting(dials: Dials) -> Dials:
    """The first two changes are carried out and their connections closed without an answer.

    DMTF/python-redfish-library#64 (iLO 5).
    """
    return replace(dials, lost_after=2)


@seen_in_the_field
def answers_lost_before_acting(dials: Dials) -> Dials:
    """The first two changes are not carried out and their connections closed without an answer.

    dell/iDRAC-Redfish-Scripting#383 (requests while the web server restarts).
    """
    return replace(dials, lost_before=2)


@seen_in_the_field
def truncated_json(dials: Dials) -> Dials:
    """The first three reads end in the middle of the JSON; the HTTP around it is right.

    RackHD/RackHD#13 (not a BMC, but a manager of many).
    """
    return replace(dials, truncated=3)


@seen_in_the_field
def body_cut_off(dials: Dials) -> Dials:
    """The connections of the first three reads end in the middle of the body.

    bb-Ricardo/check_redfish#90 (iDRAC: InvalidChunkLength, connection broken).
    """
    return replace(dials, cut_off=3)


@seen_in_the_field
def two_documents_in_one(dials: Dials) -> Dials:
    """The first three reads hold an error document, and the resource behind it.

    bb-Ricardo/check_redfish#151 (iDRAC without a licence).
    """
    return replace(dials, doubled=3)


@seen_in_the_field
def wrong_content_type(dials: Dials) -> Dials:
    """JSON is sent as text/html.

    DMTF/Redfish-Interface-Emulator#114 (as application/xml), influxdata/telegraf#19295.
    """
    return replace(dials, content_type="text/html")


@seen_in_the_field
def closes_each_connection(dials: Dials) -> Dials:
    """The connection is closed after each answer, as in HTTP/1.0.

    The emulator of OpenStack's sushy-tools 2.2.0 with its own web server (a TLS handshake for each request).
    """
    return replace(dials, closes=True)


@seen_in_the_field
def unavailable_while_booting(dials: Dials) -> Dials:
    """The BMC itself is starting: 503 for 10 s.

    xcat2/xcat-core#3965 (OpenBMC), xcat2/xcat-core#3104.
    """
    return replace(dials, unavailable_s=10.0)


@seen_in_the_field
def connection_refused(dials: Dials) -> Dials:
    """Nobody listens.

    metal3-io/baremetal-operator#1163 (a BMC that is gone).
    """
    return replace(dials, refused_s=FOR_EVER)


@seen_in_the_field
def flapping(dials: Dials) -> Dials:
    """Listens for 2 s, then for 1 s not, and so on.

    dell/iDRAC-Redfish-Scripting#383 (a BMC after its reset).
    """
    return replace(dials, flaps_s=(2.0, 1.0))


@seen_in_the_field
def certificate_changed(dials: Dials) -> Dials:
    """The certificate is another one than before.

    sonic-net/sonic-buildimage#28276 (bmcweb falls back to a self-signed certificate when its files are lost).
    """
    return replace(dials, certificate=dials.certificate + 1)


@seen_in_the_field
def redirects_to_https(dials: Dials) -> Dials:
    """A second port speaks plain HTTP and redirects to HTTPS.

    PegaProx/project-pegaprox#609 (Lenovo x3650 M5: redirects to another port of the same host).
    """
    return replace(dials, plain_http="redirects")


@seen_in_the_field
def redirects_to_slashes(dials: Dials) -> Dials:
    """Paths end with a slash; one without is redirected (308), a login too.

    bb-Ricardo/check_redfish#187 (Supermicro), ansible/ansible#48296 (iLO).
    """
    return replace(dials, slashes="redirected")


# Names


@seen_in_the_field
def system_of_another_name(dials: Dials) -> Dials:
    """The system is not called "1".

    quadsproject/quads#311 (Dell: System.Embedded.1); "Self", "system" and "Computer" elsewhere.
    """
    return replace(dials, systems=("System.Embedded.1",))


@seen_in_the_field
def several_systems(dials: Dials) -> Dials:
    """One BMC serves two systems, and none is called "1".

    DMTF/Redfish-Tacklebox#143 (partitions of one chassis).
    """
    return replace(dials, systems=("Node1", "Node2"))
