"""The tables of DESIGN.md, from the code: who carries what out, what proves it, and each procedure's stages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from unbounded.agent.operations import agent_reset
from unbounded.agent.operations.host_reboot import HOST_REBOOT
from unbounded.agent.operations.node_reboot import NODE_REBOOT
from unbounded.agent.upgrade import procedure as agent_upgrade
from unbounded.agent.upgrade.health import DEFAULT_WINDOW_S, overdue_s
from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman.executor import PROCEDURES
from unbounded.operations.deadlines import DEADLINE_S
from unbounded.operations.ownership import TABLE, Executor
from unbounded.operations.parameters import TABLE as PARAMETERS
from unbounded.operations.procedure import Cancel, Procedure, Repeat, Stage, Step

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


def _procedures() -> Iterable[tuple[OperationKind, Executor, Procedure]]:
    for kind, make in PROCEDURES.items():
        yield kind, Executor.METALMAN, make(MachineOperation(spec=MachineOperationSpec(operation_kind=kind)))
    upgrade = agent_upgrade.procedure(trial_s=overdue_s(DEFAULT_WINDOW_S))
    for kind, procedure in (
        (OperationKind.HOST_REBOOT, HOST_REBOOT),
        (OperationKind.NODE_REBOOT, NODE_REBOOT),
        (OperationKind.AGENT_UPGRADE, upgrade),
        (OperationKind.AGENT_RESET, agent_reset.PROCEDURE),
    ):
        yield kind, Executor.AGENT, procedure


def evidence() -> str:
    return _table(
        ("operation", "executor", "Complete needs"),
        ((str(kind), who, "; ".join(sorted(one.proof))) for kind, who, one in _procedures()),
    )


def _words(step: Step) -> str:
    if step.fail:
        return f"Failed/{step.fail}"
    parts = [step.stage, f"asks {step.ask}" if step.ask else "", f"records “{step.seen}”" if step.seen else ""]
    return ", ".join(part for part in parts if part)


def stages() -> str:
    return "\n".join(f"**{kind}** ({who})\n\n{_stage_table(one)}" for kind, who, one in _procedures())


MOST_COLUMNS: Final = 4  # of facts; a table with more is told row by row


def _stage_table(procedure: Procedure) -> str:
    facts = list(procedure.facts)
    if len(facts) > MOST_COLUMNS:
        return _stage_rows(procedure)
    rows = []
    for name, stage in procedure.stages.items():
        after = _afterwards(stage)
        rows_here = [procedure.table[name, fact] for fact in facts]
        again = any(step.ask and step.stage == name for step in rows_here)
        attempts = str(stage.attempts or "any number") if again else ""
        steps = map(_words, rows_here)
        rows.append((name, *steps, f"{stage.limit_s:.0f} s, then {after}", attempts, CANCEL[stage.cancel]))
    head = ("stage", *(f"seen {fact}" for fact in facts), "limit", "asks", "cancel")
    return _table(head, rows)


def _stage_rows(procedure: Procedure) -> str:
    """A stage in each row, with what is seen there; facts that lead to the same are named together."""
    rows = []
    for name, stage in procedure.stages.items():
        after = _afterwards(stage)
        still = f", or {stage.still_s:.0f} s without progress" if stage.still_s is not None else ""
        limit = f"{stage.limit_s:.0f} s{still}, then {after}"
        rows.append((name, _what_follows(procedure, name), limit, CANCEL[stage.cancel]))
    head = ("stage", "what is seen, and what follows; anything else: it stays", "limit", "cancel")
    return _table(head, rows)


def _afterwards(stage: Stage) -> str:
    """What follows a limit."""
    words = _words(stage.otherwise) if stage.otherwise else "" if stage.aftermath else "Failed"
    through = stage.aftermath if stage.otherwise is None or stage.otherwise.fail is not None else None
    return ", then ".join(part for part in (through, words) if part)


def _what_follows(procedure: Procedure, stage: str) -> str:
    facts_of: dict[Step, list[str]] = {}
    for fact in procedure.facts:
        step = procedure.table[stage, fact]
        if step != Step(stage):
            facts_of.setdefault(step, []).append(str(fact))
    return "<br>".join(f"{_named(facts, procedure)}: {_words(step)}" for step, facts in facts_of.items())


def _named(facts: list[str], procedure: Procedure) -> str:
    """The facts of a row; the last ones of all, when there are many, as a range."""
    last = [str(fact) for fact in procedure.facts][-len(facts) :]
    return f"{facts[0]} or later" if facts == last and len(facts) > 2 else ", ".join(facts)


def actions() -> str:
    def row(name: str, repeat: Repeat) -> tuple[str, ...]:
        return (f"`{name}`", repeat.value)

    known = {name: repeat for *_, procedure in _procedures() for name, repeat in procedure.actions.items()}
    return _table(("action", "when its outcome is open"), (row(*item) for item in known.items()))


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "ownership": ownership,
    "parameters": parameters,
    "deadlines": deadlines,
    "evidence": evidence,
    "actions": actions,
    "stages": stages,
}
