"""Misbehaviours of the service: sessions, accounts and ETags; late or partial replies; connections; consoles."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.faults import FOR_EVER

# Sessions and accounts


def few_sessions(faults: BmcFaults) -> BmcFaults:
    """At most 8 sessions; the ninth login is answered with 503.

    bb-Ricardo/check_redfish#89, stmcginnis/gofish#75 (iDRAC: RAC0218).
    """
    return replace(faults, session_limit=8)


def leaked_sessions(faults: BmcFaults) -> BmcFaults:
    """Other clients hold all 8 sessions and never close them; basic authentication works.

    bb-Ricardo/check_redfish#198, theforeman/smart-proxy#895.
    """
    return replace(faults, session_limit=8, leaked_sessions=8)


def no_session_service(faults: BmcFaults) -> BmcFaults:
    """There is no session service (404): basic authentication only.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(faults, session_service="absent")


def session_service_refuses(faults: BmcFaults) -> BmcFaults:
    """The session service is named but refuses every login with 401; basic authentication works.

    v1k0d3n/proxmox-redfish#42.
    """
    return replace(faults, session_service="refuses")


def session_ends_midway(faults: BmcFaults) -> BmcFaults:
    """A session is gone (401) after its fifth request, long before its time.

    bb-Ricardo/check_redfish#90 (iDRAC 7 and 8).
    """
    return replace(faults, session_requests=5)


def locks_out(faults: BmcFaults) -> BmcFaults:
    """Three wrong passwords lock the account for five minutes, for the right one too.

    ibm-openbmc/openbmc#90 (five there), DMTF/Redfish-Protocol-Validator#12, NVIDIA/infra-controller#4978.
    """
    return replace(faults, lockout_after=3)


def password_expired(faults: BmcFaults) -> BmcFaults:
    """The password is right but has to be changed first: 403 PasswordChangeRequired.

    openbmc/bmcweb#103, NVIDIA/infra-controller#4724.
    """
    return replace(faults, password_expired=True)


# ETags


def if_match_required(faults: BmcFaults) -> BmcFaults:
    """A PATCH without If-Match is answered with 428.

    DMTF/Redfish-Tacklebox#22, ansible/ansible#56150 (Lenovo).
    """
    return replace(faults, if_match_on_patch="required")


def if_match_refused(faults: BmcFaults) -> BmcFaults:
    """A PATCH with If-Match is answered with 412, whatever the ETag.

    ansible-collections/community.general#3268, dell/iDRAC-Redfish-Scripting#354.
    """
    return replace(faults, if_match_on_patch="refused")


def if_match_refused_on_actions(faults: BmcFaults) -> BmcFaults:
    """A POST of an action with If-Match is answered with 412.

    stmcginnis/gofish#510 (iDRAC 10), ironcore-dev/metal-operator#1015.
    """
    return replace(faults, if_match_on_post="refused")


def weak_etags(faults: BmcFaults) -> BmcFaults:
    """ETags are weak (W/), and If-Match has to repeat them unchanged.

    ansible-collections/community.general#6434 (Gigabyte), goldyfruit/ansible-ilo#1 (iLO).
    """
    return replace(faults, etags="weak", if_match_on_patch="required")


def double_quoted_etags(faults: BmcFaults) -> BmcFaults:
    """The ETag header has its quotes twice, the ETag in the resource once; only the latter is taken.

    ansible-collections/community.general#3268.
    """
    return replace(faults, etags="double-quoted", if_match_on_patch="required")


def no_etags(faults: BmcFaults) -> BmcFaults:
    """There are no ETags.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(faults, etags="none")


# Replies and connections


def stalls(faults: BmcFaults) -> BmcFaults:
    """Every request takes 30 s to be answered.

    DMTF/Redfishtool#74, NVIDIA/infra-controller#1584 (DGX H100: two to three minutes).
    """
    return replace(faults, stalls=FOR_EVER)


def acts_late(faults: BmcFaults) -> BmcFaults:
    """Every request waits for 30 s and is then executed, even if its client has left.

    No thread names this one; it is the worst that a BMC flooded with requests (metal3-io/ironic-image#688) can do.
    """
    return replace(faults, stalls=FOR_EVER, stall_then="acts-after")


def slow(faults: BmcFaults) -> BmcFaults:
    """Every answer takes 1 to 3 s.

    DMTF/Redfishtool#15 (pages that need the BMC's inner bus), ansible/ansible#52332 (Lenovo SR650).
    """
    return replace(faults, slow_s=(1.0, 3.0))


def flooded(faults: BmcFaults) -> BmcFaults:
    """More than 5 requests a second are answered with 503.

    metal3-io/ironic-image#688, metal3-io/baremetal-operator#3290.
    """
    return replace(faults, busy_above_per_s=5.0)


def answers_lost_after_acting(faults: BmcFaults) -> BmcFaults:
    """The first two changes are carried out and their connections closed without an answer.

    DMTF/python-redfish-library#64 (iLO 5).
    """
    return replace(faults, lost_after=2)


def answers_lost_before_acting(faults: BmcFaults) -> BmcFaults:
    """The first two changes are not carried out and their connections closed without an answer.

    dell/iDRAC-Redfish-Scripting#383 (requests while the web server restarts).
    """
    return replace(faults, lost_before=2)


def truncated_json(faults: BmcFaults) -> BmcFaults:
    """The first three reads end in the middle of the JSON; the HTTP around it is right.

    RackHD/RackHD#13 (not a BMC, but a manager of many).
    """
    return replace(faults, truncated=3)


def body_cut_off(faults: BmcFaults) -> BmcFaults:
    """The connections of the first three reads end in the middle of the body.

    bb-Ricardo/check_redfish#90 (iDRAC: InvalidChunkLength, connection broken).
    """
    return replace(faults, cut_off=3)


def two_documents_in_one(faults: BmcFaults) -> BmcFaults:
    """The first three reads hold an error document, and the resource behind it.

    bb-Ricardo/check_redfish#151 (iDRAC without a licence).
    """
    return replace(faults, doubled=3)


def wrong_content_type(faults: BmcFaults) -> BmcFaults:
    """JSON is sent as text/html.

    DMTF/Redfish-Interface-Emulator#114 (as application/xml), influxdata/telegraf#19295.
    """
    return replace(faults, content_type="text/html")


def closes_each_connection(faults: BmcFaults) -> BmcFaults:
    """The connection is closed after each answer, as in HTTP/1.0.

    The emulator of OpenStack's sushy-tools 2.2.0 with its own web server (a TLS handshake for each request).
    """
    return replace(faults, closes=True)


def unavailable_while_booting(faults: BmcFaults) -> BmcFaults:
    """The BMC itself is starting: 503 for 10 s.

    xcat2/xcat-core#3965 (OpenBMC), xcat2/xcat-core#3104.
    """
    return replace(faults, unavailable_s=10.0)


def connection_refused(faults: BmcFaults) -> BmcFaults:
    """No port is open: connections are refused.

    metal3-io/baremetal-operator#1163 (a BMC that is gone).
    """
    return replace(faults, refused_s=FOR_EVER)


def flapping(faults: BmcFaults) -> BmcFaults:
    """The BMC listens for 2 s, then does not for 1 s, and so on.

    dell/iDRAC-Redfish-Scripting#383 (a BMC after its reset).
    """
    return replace(faults, flaps_s=(2.0, 1.0))


def certificate_changed(faults: BmcFaults) -> BmcFaults:
    """The certificate has changed.

    sonic-net/sonic-buildimage#28276 (bmcweb falls back to a self-signed certificate when its files are lost).
    """
    return replace(faults, certificate=faults.certificate + 1)


def redirects_to_https(faults: BmcFaults) -> BmcFaults:
    """A second port speaks plain HTTP and redirects to HTTPS.

    PegaProx/project-pegaprox#609 (Lenovo x3650 M5: redirects to another port of the same host).
    """
    return replace(faults, plain_http="redirects")


def redirects_to_slashes(faults: BmcFaults) -> BmcFaults:
    """Paths end with a slash; one without is redirected (308), a login too.

    bb-Ricardo/check_redfish#187 (Supermicro), ansible/ansible#48296 (iLO).
    """
    return replace(faults, slashes="redirected")


# Names


def system_of_another_name(faults: BmcFaults) -> BmcFaults:
    """The system is not called "1".

    quadsproject/quads#311 (Dell: System.Embedded.1); "Self", "system" and "Computer" elsewhere.
    """
    return replace(faults, systems=("System.Embedded.1",))


def several_systems(faults: BmcFaults) -> BmcFaults:
    """One BMC serves two systems, and none is called "1".

    DMTF/Redfish-Tacklebox#143 (partitions of one chassis).
    """
    return replace(faults, systems=("Node1", "Node2"))


def serial_console(faults: BmcFaults) -> BmcFaults:
    """No fault: the BMC offers the serial console over SSH and over a web socket.

    openbmc/bmcweb (`/console0`; the system lists SSH on port 2200), ComputerSystem 1.26 of DMTF for the web socket.
    """
    return replace(faults, console="both")


def serial_console_disabled(faults: BmcFaults) -> BmcFaults:
    """The system lists the serial console, and none of its services is enabled.

    `ServiceEnabled` of ComputerSystem 1.13 of DMTF.
    """
    return replace(faults, console="disabled")


def serial_console_drops(faults: BmcFaults) -> BmcFaults:
    """The BMC closes the serial console at the first input.

    openbmc/bmcweb closes all web sockets of a console when its own connection to the UART's server ends.
    """
    return replace(faults, console="both", console_drops_after=1)


def serial_console_floods(faults: BmcFaults) -> BmcFaults:
    """The serial console sends as fast as the client takes it.

    No thread names this one; a UART is slower, and a client must not rely on that.
    """
    return replace(faults, console="both", console_output="flood")


def serial_console_silent(faults: BmcFaults) -> BmcFaults:
    """The serial console opens, and never sends a byte.

    No thread names this one; a host without a console on its serial port has this effect.
    """
    return replace(faults, console="both", console_output="silent")


def serial_console_taken(faults: BmcFaults) -> BmcFaults:
    """All sessions of the serial console are taken by others.

    `MaxConcurrentSessions` of ComputerSystem 1.13 of DMTF.
    """
    return replace(faults, console="both", console_sessions=0)


def serial_console_denied(faults: BmcFaults) -> BmcFaults:
    """The account may use Redfish, and no serial console.

    openbmc/bmcweb lets only users of the group hostconsole open `/console0`.
    """
    return replace(faults, console="both", console_denied=True)
