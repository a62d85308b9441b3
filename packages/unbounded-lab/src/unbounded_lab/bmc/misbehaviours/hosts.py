"""Misbehaviours of hosts that boot: their disks, their network cards, and what they do after an install."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.faults import BmcFaults

GB = 1_000_000_000


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
