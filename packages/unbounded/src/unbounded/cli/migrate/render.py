"""Text of a migration's plan. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
import yaml

from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import components
from unbounded.cli.deploy.components import PXE_FILE
from unbounded.cli.deploy.settings import SETTINGS
from unbounded.cli.deploy.workloads import CONFIG_FILE
from unbounded.cli.migrate.copy_plan import ObjectRef, ServerObject, ServerObjects
from unbounded.cli.migrate.kinds import LEFT, Raw
from unbounded.cli.migrate.steps import MigrationPlan
from unbounded.cli.printable import one_line

_PODS_SHOWN: Final = 5


def plan_text(plan: MigrationPlan, *, server: str, data: str, kubeconfig: str, pods: tuple[str, ...]) -> str:
    """Return the plan as text: the objects to copy, those left out, the agents' new server, and the steps.

    Args:
        server: URL of the target.
        kubeconfig: of the target, for the suggested commands.
        pods: Pods that end, as NAMESPACE/NAME.
    """
    copied = plan.source.copied
    size_kib = sum(len(msgspec.json.encode(one.body)) for one in copied) / 1024
    rows = [
        ("copied", f"{_counted(copied)} ({size_kib:,.0f} KiB)"),
        ("created there", _made(plan)),
        ("not copied", "Events, Leases, certificate requests, and objects that kubelets publish again"),
        ("agents", _agents(plan)),
    ]
    if pods:
        more = f" and {len(pods) - _PODS_SHOWN} more" if len(pods) > _PODS_SHOWN else ""
        rows.append(("Pods", f"{len(pods)} end ({', '.join(pods[:_PODS_SHOWN])}{more}): {LEFT['pods']}"))
    lines = [f"Migration of {data} to {server} (Kubernetes {plan.target.version})"]
    lines += [f"  {name:<11} {one_line(text)}" for name, text in rows]
    lines += ["Steps", *(f"  {number}. {step}" for number, step in enumerate(_STEPS, 1))]
    lines += ["Afterwards", *(f"  {command}" for command in commands(plan.source, kubeconfig))]
    return "\n".join(lines)


_STEPS: Final = (
    "The source is frozen: operations are paused, and writes of agents are rejected.",
    "The target is frozen: the Leases of its controllers are held.",
    "Definitions, RBAC and policies are installed there; then objects, each status, and counters are copied.",
    "Point of no return: the target's control plane may act. Until then, --take-back reverts everything.",
    "Agents get certificates of the target, and move. The command serves them until the last one has moved.",
)


def _counted(copied: tuple[ServerObject, ...]) -> str:
    counts = Counter(one.kind.kind for one in copied)
    first = [name for name in (MACHINES.kind, NODES.kind) if name in counts]
    rest = sorted(counts.keys() - set(first))
    return ", ".join(f"{counts[name]} {name}" for name in (*first, *rest)) or "nothing"


def _made(plan: MigrationPlan) -> str:
    new = f"{plan.target.missing} definitions, " if plan.target.missing else ""
    return f"{new}RBAC and policies of this version, where they are missing"


def _agents(plan: MigrationPlan) -> str:
    number = sum(one.status.agent is not None for one in plan.source.machines())
    where = str(plan.target.access) if plan.target.access is not None else "an unknown address"
    return f"{number} move to {where}"


def commands(source: ServerObjects, kubeconfig: str) -> Iterator[str]:
    """Yield the commands that start the controllers on the target, with the source's machina and metalman settings."""
    given = _read_settings(source, CONFIG_FILE)
    flags = "".join(f" {one.flag} {given[one.key]}" for one in SETTINGS if given.get(one.key) and one.key not in _PLACE)
    yield f"kubectl unbounded install --kubeconfig {kubeconfig}{flags}"
    served = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in _read_settings(source, PXE_FILE).items())
    for site in sorted({one.site for one in source.machines() if one.spec.pxe is not None and one.site}):
        yield f"kubectl unbounded site deploy-pxe --site {site} --kubeconfig {kubeconfig}{served}"


_PLACE: Final = frozenset({"apiServerEndpoint", "clusterDns"})  # settings of the source's own network


def _read_settings(source: ServerObjects, key: str) -> Raw:
    existing = source.objects.get(ObjectRef("", CONFIG_MAPS.plural, NAMESPACE, components.NAME))
    text = "" if existing is None else (existing.body.get("data") or {}).get(key, "")
    try:
        body = yaml.load(text, Loader=yaml.CSafeLoader)  # the safe loader, in C
    except yaml.YAMLError:
        return {}
    return body if isinstance(body, dict) else {}
