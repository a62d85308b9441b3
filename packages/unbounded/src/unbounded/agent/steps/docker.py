"""Isolation of Docker from the host's packet filter, where its rules drop traffic that is forwarded to Pods.

Its units are stopped and masked. Its configuration gets `iptables: false` in case a user unmasks them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.ports import OnProgress, UnitFacts
from unbounded.agent.steps.files import FoundFile, found_file, restore_file
from unbounded.agent.steps.original_state import OriginalState, make_folders
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Rejected
from unbounded.kube.durable import sweep, write_durably

NAME: Final = "docker guard"
UNITS: Final = ("docker.socket", "docker.service")  # the socket first: it would start the service again
CONFIG: Final = "/etc/docker/daemon.json"
KEY: Final = "iptables"


class FoundUnit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    active: bool
    enabled: str
    masked: bool


class FoundDocker(msgspec.Struct, frozen=True, kw_only=True):
    """State of Docker before `start`.

    Args:
        written: content that `start` wrote to daemon.json; another content at the reset is a user's edit.
    """

    config: FoundFile
    written: bytes
    units: tuple[FoundUnit, ...]


BEFORE: Final = OriginalState("docker", FoundDocker)


def without_iptables(config: bytes | None) -> bytes:
    """Return daemon.json with the agent's key set, and the other keys unchanged.

    Raises:
        Rejected: it is no JSON object.
    """
    values = _values(config)
    return config if config and values.get(KEY) is False else _text(values | {KEY: False})


def with_original_iptables(config: bytes, found: bytes | None) -> bytes:
    """Return a daemon.json that a user has edited since, with only the agent's key restored."""
    values, earlier = _values(config), _values(found)
    if values.get(KEY) is not False:
        return config
    rest = {key: value for key, value in values.items() if key != KEY}
    return _text(rest | ({KEY: earlier[KEY]} if KEY in earlier else {}))


def _values(config: bytes | None) -> dict[str, Any]:
    if not (config or b"").strip():
        return {}
    try:
        return msgspec.json.decode(config or b"", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Rejected(f"{CONFIG} is not a JSON object, so iptables=false cannot be set in it: {error}") from error


def _text(values: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


async def _present(host: StepHost) -> bool:
    config = found_file(host.layout.at(CONFIG)).content
    if config is None or without_iptables(config) != config:
        return False
    return all([_is_masked(host.layout, await host.units.observe(unit)) for unit in UNITS])


def _is_masked(layout: Layout, unit: UnitFacts) -> bool:
    down = unit.load == "masked" or (_is_own(layout, unit.name) and unit.enabled == "disabled")
    return down and unit.active in ("inactive", "failed")


def _is_own(layout: Layout, unit: str) -> bool:
    """Return whether the unit is a file of the user at the path of the mask."""
    path = layout.units / unit
    return path.is_file() and not path.is_symlink()


async def _add(host: StepHost, report: OnProgress) -> None:
    path = host.layout.at(CONFIG)
    config = found_file(path)
    desired = without_iptables(config.content)
    units = tuple([await _found(host, unit) for unit in UNITS])
    BEFORE.record(host.layout, FoundDocker(config=config, written=desired, units=units))
    if desired != config.content:
        make_folders(path.parent)
        write_durably(path, desired, mode=config.mode)
    for unit in UNITS:
        if (await host.units.observe(unit)).active not in ("inactive", "failed"):
            report(f"stopping {unit}")
            await host.units.stop(unit)
        if _is_own(host.layout, unit):
            await host.units.disable(unit)
        else:
            await host.units.mask(unit)


async def _found(host: StepHost, unit: str) -> FoundUnit:
    seen = await host.units.observe(unit)
    active = seen.active in ("active", "activating", "reloading")
    return FoundUnit(name=unit, active=active, enabled=seen.enabled, masked=seen.load == "masked")


async def _remove(host: StepHost) -> None:
    found = BEFORE.read(host.layout)
    if found is None:
        return
    _restore(host.layout, found)
    for unit in found.units:
        if not unit.masked and not _is_own(host.layout, unit.name):
            await host.units.unmask(unit.name)
    there = [unit for unit in found.units if (await host.units.observe(unit.name)).load == "loaded"]  # or removed since
    for unit in there:
        if unit.enabled == "enabled":
            await host.units.enable(unit.name)
    for unit in there:
        if unit.active:
            await host.units.start(unit.name)
    BEFORE.forget(host.layout)


def _restore(layout: Layout, found: FoundDocker) -> None:
    path = layout.at(CONFIG)
    now = found_file(path)
    if now.content in (found.written, None):
        restore_file(path, found.config)
    else:
        sweep(path)
        write_durably(path, with_original_iptables(now.content or b"", found.config.content), mode=now.mode)


DOCKER: Final = ReversibleStep(NAME, _present, _add, _remove)
