"""Kernel parameters of the node's MachineConfiguration: set in the kernel now, and in a file for the next boot.

`start` adds none of them: they come with a slot, at each start of its machine. Parameters of a former configuration get
their original values back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.steps.files import OwnFile
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.agent.steps.sysctl import FoundValues
from unbounded.api.failures import Rejected
from unbounded.kube.tasks import run_in_thread

NAME: Final = "configured-sysctl"
BEFORE: Final = OriginalState(NAME, FoundValues)
_FOLDER: Final = "/proc/sys"


def apply(layout: Layout, desired: Mapping[str, str]) -> None:
    """Set these parameters on the host, and restore the original values of an earlier configuration's.

    Raises:
        Rejected: the kernel has no such parameter, or rejects the value; the message names the field.
    """
    before = BEFORE.read(layout)
    found = {} if before is None else dict(before.values)
    if not desired and before is None:
        return
    for name in sorted(found.keys() - desired.keys()):
        _write(layout, name, found.pop(name), gone="is fine")
    for name in sorted(desired):
        found.setdefault(name, _read(layout, name))
    BEFORE.replace(layout, FoundValues(found))
    for name, value in sorted(desired.items()):
        _write(layout, name, value)
    if desired:
        _file(desired).put(layout)
        return
    _file({}).revert(layout)
    BEFORE.forget(layout)


def _file(desired: Mapping[str, str]) -> OwnFile:
    lines = "".join(f"{name} = {value}\n" for name, value in sorted(desired.items()))
    text = f"# Written by unbounded-agent: sysctl of the node's MachineConfiguration.\n{lines}"
    return OwnFile(f"{NAME}-file", "/etc/sysctl.d/98-unbounded-node.conf", text.encode())


def _place(name: str) -> str:
    """Return the path below /proc/sys: the first separator in the name is its separator (sysctl.d(5))."""
    first = next((one for one in name if one in "./"), ".")
    return name if first == "/" else name.translate(str.maketrans("./", "/."))


def _read(layout: Layout, name: str) -> str:
    try:
        return layout.at(f"{_FOLDER}/{_place(name)}").read_text().strip()
    except OSError as error:
        raise Rejected(f"sysctl {name}: this kernel has no such parameter ({error.strerror})") from error


def _write(layout: Layout, name: str, value: str, *, gone: str = "") -> None:
    path = layout.at(f"{_FOLDER}/{_place(name)}")
    if gone and not path.exists():  # parameters of a removed interface are gone with it
        return
    if _read(layout, name).split() == value.split():
        return
    try:
        path.write_text(f"{value}\n")
    except OSError as error:
        raise Rejected(f"sysctl {name}: the kernel rejects {value!r} ({error.strerror})") from error


async def _present(_host: StepHost) -> bool:
    return True


async def _nothing(_host: StepHost, _tell: object) -> None:
    """Do nothing: slots set the parameters."""


async def _remove(host: StepHost) -> None:
    await run_in_thread(apply, host.layout, {})


CONFIGURED_SYSCTL: Final = ReversibleStep(NAME, _present, _nothing, _remove)
