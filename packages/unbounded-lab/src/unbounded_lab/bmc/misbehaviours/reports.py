"""Wrong reports of the power."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.dials import BmcDials


def lies_about_power(dials: BmcDials) -> BmcDials:
    """For 10 s after a reset, PowerState shows the state from before it.

    tinkerbell/pbnj#127 (ASRock), tinkerbell/rufio#13.
    """
    return replace(dials, power_lie_s=10.0)


def stale_power(dials: BmcDials) -> BmcDials:
    """PowerState is read from the host every 5 s and shown from memory in between.

    xcat2/xcat-core#3966 (the state had to be queried until it was really off), openbmc/bmcweb#12.
    """
    return replace(dials, power_cache_s=5.0)


def hides_transitions(dials: BmcDials) -> BmcDials:
    """PowerState has On and Off only: On until the host is off, On from the request to start.

    ibm-openbmc/dev#2619 (OpenBMC before 2021).
    """
    return replace(dials, transitions="hidden")


def null_power_in_transition(dials: BmcDials) -> BmcDials:
    """PowerState is null while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(dials, transitions="null")


def no_power_in_transition(dials: BmcDials) -> BmcDials:
    """PowerState is absent while the power changes.

    ironcore-dev/metal-operator#601 (HPE: no power state is reported).
    """
    return replace(dials, transitions="absent")


def unknown_power_in_transition(dials: BmcDials) -> BmcDials:
    """PowerState is "Unknown", which the schema does not know, while the power changes.

    tinkerbell/rufio#13 (states that a client has no word for).
    """
    return replace(dials, transitions="unknown")


def odd_power_in_transition(dials: BmcDials) -> BmcDials:
    """PowerState is "Starting", which the schema does not know, while the power changes.

    ibm-openbmc/bmcweb#221 (found in review).
    """
    return replace(dials, transitions="starting")


def empty_system_in_transition(dials: BmcDials) -> BmcDials:
    """The system is answered with 200 and an empty body while its power changes.

    device-management-toolkit/console#1051.
    """
    return replace(dials, empty_in_transition=True)
