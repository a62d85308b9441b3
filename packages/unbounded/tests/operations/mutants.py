"""Mutants of the plan, the engine and their helpers: one small change each, which schedules should find.

A mutant is drawn by a seed: a module, a place in it, and one of the changes below. It runs in a process of its own, in
which the changed module takes the place of the real one.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

MODULES: Final = (
    "workflow.planner",
    "workflow.call_retries",
    "operations.executor_status",
    "operations.executor_engine",
    "workflow.run_state",
    "workflow.run_record",
    "operations.executor_calls",
    "operations.in_memory_state",
)
PACKAGE: Final = "unbounded"
CONTROL: Final = -1
_OPPOSITE: Final = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: its name below the package.
        line: in its source.
        what: the change, for people.
        source: the whole module with the change.
    """

    module: str
    line: int
    what: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.module}.py:{self.line}: {self.what}"


def source_of(module: str) -> Path:
    found = importlib.util.find_spec(f"{PACKAGE}.{module}")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


@dataclass(frozen=True)
class Fault:
    """A change of a line that must never go unnoticed, as text of the source."""

    module: str
    name: str
    before: str
    after: str

    def mutant(self) -> Mutant:
        source = source_of(self.module).read_text()
        assert source.count(self.before) == 1, f"{self.name}: the source has changed, and so must this"
        line = source[: source.index(self.before)].count("\n") + 1
        return Mutant(self.module, line, self.name, source.replace(self.before, self.after))


FAULTS: Final = (
    Fault(
        "operations.executor_status",
        "lock ignored at the intent's write",
        "if active.uid != context.operation.metadata.uid:",
        "if False:",
    ),
    Fault(
        "operations.executor_status",
        "acts on an observation older than 5 s",
        "is_stale = observed is None or sent_at - observed.ended_at > ACT_ON_S",
        "is_stale = observed is None",
    ),
    Fault(
        "operations.executor_status",
        "live target check dropped",
        "if target_state(self._executor, run, machine) is not TargetState.SAME:\n            raise Stale",
        "if False:\n            raise Stale",
    ),
    Fault(
        "workflow.run_state",
        "spentSeconds never recorded",
        "spent_s=self.spent(now),\n            stage_s",
        "spent_s=0,\n            stage_s",
    ),
    Fault(
        "operations.executor_engine",
        "acts late after the intent",
        "before = min(entered.sent_at + ACT_WITHIN_S, self._epoch.acts_until())",
        "before = math.inf",
    ),
)
"""They survived all schedules once."""

DRAIN_FAULTS: Final = tuple(
    Fault(*one)
    for one in (
        ("operations.claim_gates", "no gate", "    if not needs_grant(operation, machine):\n", "    if True:\n"),
        ("operations.disruption.budgets", "no check for room", "or len(self.used) < self.limit", "or True"),
        ("kube.process_epoch", "no Lease checks", "if loop_time() > self.acts_until():", "if False:"),
        (
            "operations.disruption.drained_nodes",
            "cordon without its mark",
            '"annotations": {ANNOTATION_CORDONED_BY: holder}}',
            '"annotations": {}}',
        ),
        ("operations.disruption.budgets", "grants that never end", "    return age_s < GRACE_S\n", "    return True\n"),
        (
            "operations.disruption.budget_grants",
            "no grant is written",
            "if same and present is not None and seconds_since(present.since, self._now()) < GRACE_S / 2:",
            "if True:",
        ),
        (
            "operations.disruption.model",
            "cordons of others are removed",
            "return ANNOTATION_CORDONED_BY in node.metadata.annotations",
            "return node.spec.unschedulable",
        ),
        ("operations.disruption.plan", "no proof of return", "if not record.worked:", "if True:"),
        ("operations.disruption.plan", "returns before minReadySeconds", "if view.ready_s < least_s:", "if False:"),
        (
            "operations.disruption.plan",
            "returns without a renewed lease",
            "None if view.renewed else",
            "None if True else",
        ),
        (
            "operations.disruption.plan",
            "stays cordoned too long",
            "if view.ready_s < least_s:",
            "if view.ready_s < least_s + 60:",
        ),
        ("operations.disruption.plan", "drained with pods left", "    if not left:\n", "    if left < 2:\n"),
        (
            "operations.disruption.model",
            "goes on after its holder",
            "    if operation.terminal:\n",
            "    if False:\n",
        ),
        ("operations.rollout_plan", "starts while halted", "not (broken or rules.paused or pause)", "True"),
        (
            "machina.rolling_update_plan",
            "a rolling update goes on while halted",
            "return not (step.broken or view.settings.paused)",
            "return not view.settings.paused",
        ),
    )
)
"""What the judge of drains has to see."""

CLOUD_FAULTS: Final = tuple(
    Fault(*one)
    for one in (
        (
            "containercloud.claims",
            "a claim without the version of the host",
            '"resourceVersion": host.metadata.resource_version,\n                "annotations": {ANNOTATION_CONSUMER_U',
            '"annotations": {ANNOTATION_CONSUMER_U',
        ),
        ("containercloud.claims", "a claim that comes too late stays", "await self._release_orphans(key)", "pass"),
        (
            "containercloud.machines.controller",
            "an operation is created before its record",
            "        machine = await self._write(view, plan, {} if left_s else change)\n",
            "        for action in plan.actions:\n            if isinstance(action, RequestOperation):\n"
            "                await self._request(view, action)\n"
            "        machine = await self._write(view, plan, change)\n",
        ),
        (
            "containercloud.machines.life",
            "a host is recorded before its claim",
            "if wait is not None or host is None:",
            "if host is None:",
        ),
        (
            "containercloud.machines.target_fields",
            "the drain of an aborted deletion stays",
            "ours = set(maintenance_reasons(view.full_name))",
            "ours = set(maintenance_reasons(view.full_name)[:1])",
        ),
        (
            "containercloud.machines.life",
            "a host that others have installed is installed",
            "if view.adopted:  # others have installed the host",
            "if False:",
        ),
        (
            "containercloud.machines.target_fields",
            "a host that others have installed is updated",
            "labels[LABEL_UPGRADE_INDEX] = None",
            "pass",
        ),
        (
            "containercloud.machines.deletion",
            "a host that others have installed is switched off",
            "_S.RELEASING if view.adopted else _S.POWERING_OFF",
            "_S.POWERING_OFF",
        ),
        (
            "containercloud.hosts.machine_fields",
            "an adopted Machine keeps the fields of its claim",
            "return given_back(view.machine)",
            "return dict.fromkeys(claim_marks(view.machine))",
        ),
        (
            "containercloud.machines.deletion",
            "an operation that was recorded only is forgotten",
            "if view.execution.operation is None or (result is not None and result.failed):",
            "if result is None or result.failed:",
        ),
        (
            "containercloud.machines.deletion",
            "an abort installs a second time",
            "if view.execution.stage == _S.GUARDING and view.execution.operation and (",
            "if False and (",
        ),
        (
            "containercloud.network.controller",
            "an address is allocated before the claim",
            'notes.get(ANNOTATION_NETWORK_OF, ""), notes',
            'min((one.name for one in self._targets.all()), default=""), notes',
        ),
        (
            "containercloud.network.subnets",
            "an address is allocated twice",
            "free({one.address for one in known})",
            "free({one.address for one in known if one.uid == uid})",
        ),
        (
            "kube.status_writer",
            "a status without the version of its object",
            '{"metadata": {"resourceVersion": version}, "status": self._owned(status)}',
            '{"status": self._owned(status)}',
        ),
    )
)
"""What the judge of Container Cloud has to see."""


def mutant(seed: int) -> Mutant:
    """Return the mutant of a seed; equal seeds give equal ones for as long as the source is the same."""
    chance = random.Random(seed)
    sources = {module: source_of(module).read_text() for module in MODULES}
    places = [(module, at) for module in MODULES for at in range(sum(1 for _ in _changes(ast.parse(sources[module]))))]
    module, at = chance.choice(places)
    tree = ast.parse(sources[module])
    for index, (line, what) in enumerate(_changes(tree)):
        if index == at:
            return Mutant(module, line, what, ast.unparse(ast.fix_missing_locations(tree)))
    raise AssertionError("there are as many places as were counted")


def unchanged() -> Mutant:
    """Return a mutant without a change: the control, which no schedule may find."""
    module = MODULES[0]
    return Mutant(module, 0, "no change", ast.unparse(ast.parse(source_of(module).read_text())))


def _changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Make each change in turn, yield its line and words, and revert it before the next one."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_shown_only(function):
            for node in ast.walk(function):
                yield from _of_node(node)


def _is_shown_only(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function makes only text, which schedules do not read."""
    returns = ast.unparse(function.returns) if function.returns is not None else ""
    return returns == "str" or function.name in ("__post_init__", "__init__")


def _of_node(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Compare(ops=[operator], lineno=line) if type(operator) in _OPPOSITE:
            node.ops = [_OPPOSITE[type(operator)]()]
            yield line, f"{ast.unparse(node)} (was the opposite)"
            node.ops = [operator]
        case ast.BoolOp(op=operator, lineno=line):
            node.op = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            yield line, f"{ast.unparse(node)} (was {type(operator).__name__.lower()})"
            node.op = operator
        case ast.If(test=test, lineno=line):
            for value in (True, False):
                node.test = ast.Constant(value)
                yield line, f"if {value} (was {ast.unparse(test)})"
            node.test = test
        case ast.Constant(value=bool(value), lineno=line):
            node.value = not value
            yield line, f"{not value} (was {value})"
            node.value = value
        case ast.Constant(value=int(value) | float(value), lineno=line):
            node.value = value + 1000
            yield line, f"{value + 1000} (was {value})"
            node.value = value
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator, lineno=line):
            node.op = ast.Sub() if isinstance(operator, ast.Add) else ast.Add()
            yield line, f"{ast.unparse(node)} (was the other sign)"
            node.op = operator
        case ast.Call(func=ast.Name(id="min" | "max" as name), lineno=line):
            node.func = ast.Name("max" if name == "min" else "min", ast.Load())
            yield line, f"{ast.unparse(node)} (was {name})"
            node.func = ast.Name(name, ast.Load())
    yield from _of_body(node)


def _of_body(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Leave out a statement: one that calls, assigns to an attribute, or raises."""
    for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
        if not isinstance(body, list):
            continue
        for at, statement in enumerate(body):
            if _can_go(statement):
                body[at] = ast.copy_location(ast.Pass(), statement)
                yield statement.lineno, f"nothing (was {ast.unparse(statement)[:100]})"
                body[at] = statement


def _can_go(statement: ast.stmt) -> bool:
    match statement:
        case ast.Raise():
            return True
        case ast.Expr(value=ast.Call() | ast.Await() as value):
            return not ast.unparse(value).startswith(("log.", "await self._status.show"))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Assign(targets=[ast.Tuple(elts=targets)]):
            return all(isinstance(target, ast.Attribute) for target in targets)
    return False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has one module come from another source."""

    def __init__(self, changed: Mutant) -> None:
        self._changed = changed

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != f"{PACKAGE}.{self._changed.module}":
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=f"mutant of {self._changed.module}.py")

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._changed.source, f"mutant of {self._changed.module}.py", "exec"), module.__dict__)


def main(which: str, schedules: int) -> None:
    """Run the schedules on a mutant, then the courses, and print what found it; nothing where it survives all.

    Args:
        which: a seed, that of the control, or the name of a fault.
    """
    put_in_place(named(which))
    if any(fault.name == which for fault in DRAIN_FAULTS):
        from tests.operations.disruption.test_crash import run_schedule  # imports what is changed

        print(_found_by(run_schedule, schedules), end="")
    elif any(fault.name == which for fault in CLOUD_FAULTS):
        from tests.containercloud.test_crash import run_schedule as run_cloud_schedule  # this, too

        print(_found_by(run_cloud_schedule, schedules), end="")
    else:
        from tests.operations.schedules import run_schedule as run_engine_schedule  # so does this

        print(_found_by(run_engine_schedule, schedules) or _by_courses(), end="")


def _found_by(run: Callable[[int], None], schedules: int) -> str:
    for number in range(schedules):
        try:
            run(number)
        except Exception as error:
            return f"schedule {number}: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _by_courses() -> str:
    from tests.operations.courses import told
    from tests.operations.record_courses import recorded

    for name, course in recorded().items():
        try:
            is_same = told(name) == course
        except Exception as error:
            return f"course {name}: {type(error).__name__}: {str(error)[:200]}"
        if not is_same:
            return f"course {name}"
    return ""


def named(which: str) -> Mutant:
    """Return the mutant of a seed, the control, or that of a fault by its name."""
    for fault in (*FAULTS, *DRAIN_FAULTS, *CLOUD_FAULTS):
        if fault.name == which:
            return fault.mutant()
    return unchanged() if int(which) == CONTROL else mutant(int(which))


def put_in_place(changed: Mutant) -> None:
    """Have this process import the changed module; nothing of the package may be imported yet."""
    assert f"{PACKAGE}.{changed.module}" not in sys.modules, "too late"
    sys.meta_path.insert(0, _Finder(changed))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
