"""Sessions, accounts and ETags that lock clients out."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.dials import BmcDials

# Sessions and accounts


def few_sessions(dials: BmcDials) -> BmcDials:
    """At most 8 sessions; the ninth login is answered with 503.

    bb-Ricardo/check_redfish#89, stmcginnis/gofish#75 (iDRAC: RAC0218).
    """
    return replace(dials, session_limit=8)


def leaked_sessions(dials: BmcDials) -> BmcDials:
    """Other clients hold all 8 sessions and never close them; basic authentication works.

    bb-Ricardo/check_redfish#198, theforeman/smart-proxy#895.
    """
    return replace(dials, session_limit=8, leaked_sessions=8)


def no_session_service(dials: BmcDials) -> BmcDials:
    """There is no session service (404): basic authentication only.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(dials, session_service="absent")


def session_service_refuses(dials: BmcDials) -> BmcDials:
    """The session service is named but refuses every login with 401; basic authentication works.

    v1k0d3n/proxmox-redfish#42.
    """
    return replace(dials, session_service="refuses")


def session_ends_midway(dials: BmcDials) -> BmcDials:
    """A session is gone (401) after its fifth request, long before its time.

    bb-Ricardo/check_redfish#90 (iDRAC 7 and 8).
    """
    return replace(dials, session_requests=5)


def locks_out(dials: BmcDials) -> BmcDials:
    """Three wrong passwords lock the account for five minutes, for the right one too.

    ibm-openbmc/openbmc#90 (five there), DMTF/Redfish-Protocol-Validator#12, NVIDIA/infra-controller#4978.
    """
    return replace(dials, lockout_after=3)


def password_expired(dials: BmcDials) -> BmcDials:
    """The password is right but has to be changed first: 403 PasswordChangeRequired.

    openbmc/bmcweb#103, NVIDIA/infra-controller#4724.
    """
    return replace(dials, password_expired=True)


# ETags


def if_match_required(dials: BmcDials) -> BmcDials:
    """A PATCH without If-Match is answered with 428.

    DMTF/Redfish-Tacklebox#22, ansible/ansible#56150 (Lenovo).
    """
    return replace(dials, if_match_on_patch="required")


def if_match_refused(dials: BmcDials) -> BmcDials:
    """A PATCH with If-Match is answered with 412, whatever the ETag.

    ansible-collections/community.general#3268, dell/iDRAC-Redfish-Scripting#354.
    """
    return replace(dials, if_match_on_patch="refused")


def if_match_refused_on_actions(dials: BmcDials) -> BmcDials:
    """A POST of an action with If-Match is answered with 412.

    stmcginnis/gofish#510 (iDRAC 10), ironcore-dev/metal-operator#1015.
    """
    return replace(dials, if_match_on_post="refused")


def weak_etags(dials: BmcDials) -> BmcDials:
    """ETags are weak (W/), and If-Match has to repeat them unchanged.

    ansible-collections/community.general#6434 (Gigabyte), goldyfruit/ansible-ilo#1 (iLO).
    """
    return replace(dials, etags="weak", if_match_on_patch="required")


def double_quoted_etags(dials: BmcDials) -> BmcDials:
    """The ETag header has its quotes twice, the ETag in the resource once; only the latter is taken.

    ansible-collections/community.general#3268.
    """
    return replace(dials, etags="double-quoted", if_match_on_patch="required")


def no_etags(dials: BmcDials) -> BmcDials:
    """There are no ETags.

    The emulator of OpenStack's sushy-tools 2.2.0.
    """
    return replace(dials, etags="none")
