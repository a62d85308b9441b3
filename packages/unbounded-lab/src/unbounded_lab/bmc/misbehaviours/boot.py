"""Boot overrides that are lost, stay or are refused."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.dials import BmcDials


def boot_override_dropped(dials: BmcDials) -> BmcDials:
    """A PATCH of the boot override is answered with success and forgotten.

    NVIDIA/infra-controller#505 (Supermicro), metal3-io/baremetal-operator#2691.
    """
    return replace(dials, override="dropped")


def boot_override_not_followed(dials: BmcDials) -> BmcDials:
    """The boot override is kept and shown, and the firmware boots from disk all the same.

    redhat-performance/jetlag#18 (Supermicro), NVIDIA/infra-controller#5201.
    """
    return replace(dials, ignores_override=True)


def boot_override_refused(dials: BmcDials) -> BmcDials:
    """The boot override cannot be written: 405.

    ibm-openbmc/dev#3277 (removed for PowerVM hosts).
    """
    return replace(dials, override="refused")


def boot_override_stays(dials: BmcDials) -> BmcDials:
    """Once is taken for Continuous: the host boots from the network again and again.

    The emulator of OpenStack's sushy-tools 2.2.0 answers so; on hardware it makes a host install itself in a loop.
    """
    return replace(dials, override="continuous")


def boot_override_fails_when_off(dials: BmcDials) -> BmcDials:
    """The boot override of a host that is off cannot be written: 500.

    DMTF/Redfish-Tacklebox#143.
    """
    return replace(dials, override="fails-when-off")


def no_uefi_http(dials: BmcDials) -> BmcDials:
    """The boot override has no target UefiHttp.

    xcat2/xcat2-task-management#518 (OpenBMC on POWER9).
    """
    return replace(dials, boot_targets=tuple(target for target in dials.boot_targets if target != "UefiHttp"))


def boot_mode_reverts(dials: BmcDials) -> BmcDials:
    """A PATCH of the override that does not name the mode sets it to Legacy.

    DMTF/Redfishtool#106 (Supermicro), ironcore-dev/metal-operator#607.
    """
    return replace(dials, override_mode_reverts=True)
