"""The view of one site: boot servers, boots in progress, leases, images, bootstrap tokens and the health of BMCs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, counted
from unbounded.api.machine import Machine, NetbootMilestone
from unbounded.api.machine_spec import DHCPLease
from unbounded.api.meta import Condition
from unbounded.console import urls
from unbounded.console.models.leaders import LATE_S, SiteProcesses
from unbounded.console.models.parts import (
    MAX_ROWS,
    FactList,
    NotRead,
    Tone,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
    duration,
    facts,
    phase,
    words,
)
from unbounded.explain.facts import MACHINA, leases_of
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.observed_power import BmcState, bmc_state, power_of

SHOWN: Final = 200  # Machines of a table, those that need attention first


@dataclass(frozen=True)
class SiteToken:
    """A bootstrap token of a site, without its secret."""

    name: str
    expires: datetime | None


@dataclass(frozen=True)
class DefaultTokens:
    """The default bootstrap tokens of a site; `unread` is the reason why they are not known."""

    tokens: tuple[SiteToken, ...] = ()
    unread: str = ""


def site_view(
    site: str, machines: Iterable[Machine], processes: SiteProcesses | NotRead, tokens: DefaultTokens, now: datetime
) -> ViewData:
    """Return the view of a site.

    Args:
        machines: of all sites.
        tokens: of this site.
    """
    own = sorted((one for one in machines if one.site == site), key=lambda one: one.name)
    booting = [one for one in own if is_booting(one)]
    sections: tuple[ViewSection, ...] = (
        _summary(own, booting),
        _servers(site, processes),
        _storm(booting),
        _boots(booting),
        _images(own),
        _bmcs(own),
        _leases(own),
        _tokens(tokens, now),
    )
    state = words(f"{len(booting)} booting", tone=Tone.BUSY) if booting else words(counted(len(own), "Machine"))
    return ViewData(f"Site {site}", state, sections)


def _summary(own: Sequence[Machine], booting: Sequence[Machine]) -> FactList:
    phases = Counter(one.status.phase or "new" for one in own)
    return facts(
        "Machines",
        (
            ("All", str(len(own))),
            *((name, ViewText(str(count), tone=phase(name).tone)) for name, count in sorted(phases.items())),
            ("Booting", str(len(booting)) if booting else None),
        ),
    )


# ---- processes


def processes_of(site: str) -> tuple[str, ...]:
    """Return the processes that serve a site, as the status names them."""
    return f"{ExecutorKind.METALMAN}/{site}", MACHINA


def lease_names(site: str) -> frozenset[str]:
    """Return the names of their Leases."""
    return frozenset(name for process in processes_of(site) for name in leases_of(process))


def _servers(site: str, processes: SiteProcesses | NotRead) -> ViewTable:
    return ViewTable(
        "Boot servers and controllers",
        ("Process", "State", "Leader", "Last renewed"),
        tuple(row for name in processes_of(site) for row in _process(name, processes)),
    )


def _process(name: str, processes: SiteProcesses | NotRead) -> Iterator[tuple[ViewText, ...]]:
    if isinstance(processes, NotRead):
        yield words(name), words(processes.why), words(""), words("")
        return
    facts = processes.facts
    if facts.embedded:
        yield words(name), words("runs in the process of the API server", tone=Tone.GOOD), words(""), words("")
        return
    silence = facts.silence(name)
    if silence is not None:
        yield words(name), words(silence, tone=Tone.BAD), words(""), words("")
        return
    for lease in facts.leases_of_process(name):
        within = f"in the last {duration(LATE_S)}"
        if lease.name in processes.late:
            state, renewed = words(f"not renewed {within}", tone=Tone.BAD), lease.renewed
        else:
            state, renewed = words("leads", tone=Tone.GOOD), within
        yield words(name), state, words(lease.holder), words(renewed)


# ---- boots


def is_booting(machine: Machine) -> bool:
    """Return whether a boot of the Machine is requested or in progress: by its operation, or by its repave counter."""
    netboot, active = machine.status.netboot, machine.status.active_operation
    if netboot is None:
        return False
    if active is not None and active.uid == netboot.boot:
        return True
    repaved = machine.current_condition(ConditionType.REPAVED)
    is_due = repaved is not None and repaved.status == ConditionStatus.FALSE
    return netboot.boot.startswith("repave-") and is_due


def _storm(booting: Sequence[Machine]) -> ViewTable:
    counts = Counter(one.status.netboot.milestone for one in booting if one.status.netboot is not None)
    order: tuple[str | None, ...] = (None, *NetbootMilestone)
    return ViewTable(
        "Boots by milestone",
        ("Milestone", "Machines"),
        tuple((phase(one) if one else words("requested"), words(str(counts[one]))) for one in order if counts[one]),
        empty="No Machine boots the installer.",
    )


def _boots(booting: Sequence[Machine]) -> ViewTable:
    return ViewTable(
        "Boots in progress",
        ("Machine", "Milestone", "Image written", "Loads", "Message", "Reached"),
        tuple(map(_boot, booting)),
    )


def _boot(machine: Machine) -> tuple[ViewText, ...]:
    found, name = machine.status.netboot, ViewText(machine.name, urls.machine(machine.name))
    if found is None:
        return (name,)
    percent = "" if found.percent is None else f"{found.percent} %"
    loads = "" if found.loads is None else str(found.loads)
    return (name, phase(found.milestone), *map(words, (percent, loads, found.message, found.at)))


# ---- images, BMCs, leases


def _images(own: Iterable[Machine]) -> ViewTable:
    groups: dict[tuple[str, ...], list[Condition | None]] = defaultdict(list)
    for one in own:
        pxe = one.spec.pxe
        if pxe is not None and (pxe.image or pxe.netboot_image):
            key = (pxe.image or "", pxe.netboot_image or "", pxe.architecture)
            groups[key].append(one.current_condition(ConditionType.NETBOOT_IMAGE_READY))
    return ViewTable(
        "Images",
        ("Image", "Netboot image", "Architecture", "Machines", "State", "Message"),
        tuple(
            (*map(words, key), words(str(len(states))), *_image_state(states)) for key, states in sorted(groups.items())
        ),
        empty="No Machine of the site names an image.",
    )


def _image_state(states: Sequence[Condition | None]) -> tuple[ViewText, ViewText]:
    """Return the state of an image by the conditions of its Machines: the worst one, with its message."""
    known = [one for one in states if one is not None]
    if not known:
        return words("not reported", tone=Tone.WARN), words("")
    bad = [one for one in known if one.status == ConditionStatus.FALSE]
    if not bad:
        return words(known[0].reason, tone=Tone.GOOD), words(known[0].message)
    worst = min(bad, key=lambda one: one.reason == ConditionReason.PULLING)
    return words(worst.reason, tone=Tone.BUSY if worst.reason == ConditionReason.PULLING else Tone.BAD), words(
        worst.message
    )


_URGENCY: Final[Mapping[BmcState, int]] = {
    BmcState.REFUSED: 0,
    BmcState.UNREACHABLE: 1,
    BmcState.UNREAD: 2,
    BmcState.REACHABLE: 3,
}
_HEALTH: Final = {"Critical": 0, "Warning": 1}


def _bmcs(own: Iterable[Machine]) -> ViewTable:
    found = [(state, _worst(one), one) for one in own if (state := bmc_state(one)) is not None]
    found.sort(key=lambda each: (_URGENCY[each[0]], each[1][0], each[2].name))
    return ViewTable(
        "BMCs",
        ("Machine", "BMC", "State", "Power", "Parts"),
        tuple(
            (
                ViewText(one.name, urls.machine(one.name)),
                words("" if one.spec.pxe is None or one.spec.pxe.redfish is None else one.spec.pxe.redfish.url),
                phase(state.value),
                words(power_of(one)),
                worst,
            )
            for state, (_, worst), one in found[:MAX_ROWS]
        ),
        empty="No Machine of the site has a BMC.",
        more=max(len(found) - MAX_ROWS, 0),
    )


def _worst(machine: Machine) -> tuple[int, ViewText]:
    """Return the rank and the text of the worst health that the BMC reports for a part.

    Parts without a fault may be left out of the Machine, so their number is not known.
    """
    reading = None if machine.status.hardware is None else machine.status.hardware.bmc
    if reading is None:
        return 3, words("")
    bad = sorted((one for one in reading.parts if one.health in _HEALTH), key=lambda one: _HEALTH[one.health or ""])
    if not bad:
        return 2, words("no fault reported", tone=Tone.GOOD)
    health = bad[0].health or ""
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return _HEALTH[health], words(f"{health}: {bad[0].kind} {bad[0].name}{more}", tone=phase(health).tone)


def _leases(own: Iterable[Machine]) -> ViewTable:
    found = [
        (served is None or served.status != ConditionStatus.FALSE, one, served, lease)
        for one in own
        if one.spec.pxe is not None and one.spec.pxe.dhcp_leases
        for served in (one.current_condition(ConditionType.NETBOOT_SERVED),)
        for lease in one.spec.pxe.dhcp_leases
    ]
    found.sort(key=lambda each: each[0])
    return ViewTable(
        "DHCP leases",
        ("Machine", "IPv4", "MAC", "Served", "Message"),
        tuple(_lease(one, served, lease) for _, one, served, lease in found[:MAX_ROWS]),
        empty="No lease.",
        more=max(len(found) - MAX_ROWS, 0),
    )


def _lease(machine: Machine, served: Condition | None, lease: DHCPLease) -> tuple[ViewText, ...]:
    state, message = words(""), words("")
    if served is not None:
        tone = Tone.BAD if served.status == ConditionStatus.FALSE else Tone.GOOD
        state, message = words(served.reason, tone=tone), words(served.message)
    return ViewText(machine.name, urls.machine(machine.name)), words(lease.ipv4), words(lease.mac), state, message


def _tokens(found: DefaultTokens, now: datetime) -> ViewTable:
    empty = found.unread or "The site has no default bootstrap token."
    return ViewTable(
        "Default bootstrap tokens",
        ("Secret", "Expires", "Left"),
        tuple(
            (words(one.name), words("never" if one.expires is None else one.expires.isoformat()), _left(one, now))
            for one in found.tokens
        ),
        empty=empty,
    )


def _left(token: SiteToken, now: datetime) -> ViewText:
    if token.expires is None:
        return words("")
    left_s = (token.expires - now).total_seconds()
    return words(duration(left_s)) if left_s > 0 else words("expired", tone=Tone.BAD)
