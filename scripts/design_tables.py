"""The tables of DESIGN.md, from the code: who carries what out, what proves it, and each procedure's stages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman import power
from unbounded.operations.deadlines import DEADLINE_S
from unbounded.operations.ownership import TABLE, Executor
from unbounded.operations.parameters import TABLE as PARAMETERS
from unbounded.operations.procedure import Cancel, Procedure, Repeat, Step

DESIGN: Final = "DESIGN.md"
ROOT: Final = Path(__file__).resolve().parent.parent

CANCEL: Final = {Cancel.AT_ONCE: "at once", Cancel.UNDO: "undone first", Cancel.TOO_LATE: "too late, said so"}


def files() -> Mapping[str, str]:
    """DESIGN.md with every marked section written anew."""
    text = (ROOT / DESIGN).read_text()
    for name, section in SECTIONS.items():
        marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        content = section().replace("\\", r"\\")
        text, count = marked.subn(rf"\g<1>{content}\g<2>", text)
        if count != 1:
            raise ValueError(f"{DESIGN} needs one section between <!-- {name}:begin --> and <!-- {name}:end -->")
    return {DESIGN: text}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def ownership() -> str:
    def row(kinds: frozenset[OperationKind], has: str, executor: Executor | None) -> tuple[str, ...]:
        named = ", ".join(kind for kind in OperationKind if kind in kinds)
        return (named, has, executor or "nobody: `Failed/UnsupportedTarget`, said at once")

    return _table(
        ("kinds", "the Machine has", "executor"), (row(one.kinds, one.the_machine_has, one.executor) for one in TABLE)
    )


def parameters() -> str:
    def names(members: Iterable[str]) -> str:
        return ", ".join(sorted(members))

    return _table(
        ("parameter", "kinds", "executors", "required"),
        (
            (f"`{one.name}`", names(one.kinds), names(one.executors), "yes" if one.required else "")
            for one in PARAMETERS
        ),
    )


def deadlines() -> str:
    return _table(("kind", "seconds"), ((str(kind), str(seconds)) for kind, seconds in DEADLINE_S.items()))


def _procedures() -> Iterable[tuple[OperationKind, Procedure]]:
    for kind, make in power.PROCEDURES.items():
        yield kind, make(MachineOperation(spec=MachineOperationSpec(operation_kind=kind)))


def evidence() -> str:
    return _table(
        ("operation", "executor", "Complete needs"),
        ((str(kind), Executor.METALMAN, "; ".join(sorted(one.proof))) for kind, one in _procedures()),
    )


def _words(step: Step) -> str:
    if step.fail:
        return f"Failed/{step.fail}"
    parts = [step.stage, f"asks {step.ask}" if step.ask else "", f"records “{step.seen}”" if step.seen else ""]
    return ", ".join(part for part in parts if part)


def stages() -> str:
    return "\n".join(f"**{kind}**\n\n{_stage_table(one)}" for kind, one in _procedures())


def _stage_table(procedure: Procedure) -> str:
    facts = list(procedure.facts)
    rows = []
    for name, stage in procedure.stages.items():
        after = _words(stage.otherwise) if stage.otherwise else "Failed"
        rows_here = [procedure.table[name, fact] for fact in facts]
        again = any(step.ask and step.stage == name for step in rows_here)
        attempts = str(stage.attempts) if again else ""
        steps = map(_words, rows_here)
        rows.append((name, *steps, f"{stage.limit_s:.0f} s, then {after}", attempts, CANCEL[stage.cancel]))
    head = ("stage", *(f"seen {fact}" for fact in facts), "limit", "asks", "cancel")
    return _table(head, rows)


def actions() -> str:
    def row(name: str, repeat: Repeat) -> tuple[str, ...]:
        return (f"`{name}`", repeat.value)

    return _table(("action", "when its outcome is open"), (row(*item) for item in power.ACTIONS.items()))


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "ownership": ownership,
    "parameters": parameters,
    "deadlines": deadlines,
    "evidence": evidence,
    "actions": actions,
    "stages": stages,
}
