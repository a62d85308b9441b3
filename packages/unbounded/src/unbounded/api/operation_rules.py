"""The CEL rules of MachineOperations, their rollouts, and MachineDisruptionBudgets."""

from __future__ import annotations

from typing import Final

from unbounded.api import configuration, operation
from unbounded.api.disruption import MachineDisruptionBudgetSpec
from unbounded.api.machine_status import PCR_FORM, PCR_LIST, PCR_TWICE, RESCUE_KEY_FORM, RESCUE_KEYS, RESCUE_KEYS_MAX
from unbounded.api.rules import RuleTable, ValidationRule, one_of, unchanged


def immutable(field: str) -> ValidationRule:
    """Return the rule of an immutable field: a request of an operation never changes."""
    return ValidationRule(unchanged(field), f"{field} is immutable: create another MachineOperation", f".{field}")


_TERMINAL: Final = ", ".join(f"'{phase}'" for phase in sorted(operation.TERMINAL_PHASES))


def _share(field: str) -> ValidationRule:
    """Return the rule of a number of Machines or a percentage of them."""
    return ValidationRule(
        f"!has(self.{field}) || (type(self.{field}) == int ? self.{field} >= 1"
        f" : self.{field}.matches('^([1-9][0-9]?|100)%$'))",
        f"{field} must be a number from 1, or a percentage from 1% to 100%",
        f".{field}",
    )


_SELECTS: Final = (
    "!has(self.machineSelector)"
    " || (has(self.machineSelector.matchLabels) && size(self.machineSelector.matchLabels) > 0)"
    " || (has(self.machineSelector.matchExpressions) && size(self.machineSelector.matchExpressions) > 0)"
)
_STAGES: Final = str(list(range(operation.MAX_STAGES)))  # their indexes: CEL has no other way to an order


def _starts_after(what: str) -> ValidationRule:
    return ValidationRule(
        f"!has(self.stages) || {_STAGES}.all(i, i >= size(self.stages) || !has(self.stages[i].startAfter)"
        f" || {_STAGES}.exists(j, j < i && self.stages[j].name == self.stages[i].startAfter.stage))",
        f"startAfter must name an earlier stage of this {what}",
        ".stages",
    )


def _cron_field(number: str) -> str:
    """Return the regular expression of one field of a cron expression."""
    one = rf"(\*|({number})(-({number}))?)(/[1-9][0-9]?)?"
    return rf"{one}(,{one})*"


_CRON: Final = (
    "^"
    + " ".join(map(_cron_field, ("[1-5]?[0-9]", "1?[0-9]|2[0-3]", "[1-9]|[12][0-9]|3[01]", "[1-9]|1[0-2]", "[0-7]")))
    + "$"
)
_ASCENDING: Final = (  # in a field that has the form: a range from a higher to a lower number never comes
    "self.schedule.split(' ').all(f, f.split(',').all(p, !p.contains('-')"
    " || int(p.split('-')[0]) <= int(p.split('-')[1].split('/')[0])))"
)


def _begin_with(*numbers: int, last: str) -> str:
    """Return the regular expression of a field whose parts begin with these numbers; `{}` in `last` is the number."""
    one = f"({'|'.join(f'{number}{last.format(number)}' for number in numbers)})"
    return f"{one}(,{one})*"


_DAYS: Final = "(-3[01])?(/[0-9]+)?"
_MONTH: Final = "(-{}(/[0-9]+)?)?"  # ranges of several months have a longer one, unless a step leaves it out
# Days that no month of a list has, with any day of the week: a restricted day of the week comes beside them.
_NEVER: Final = (
    f"^[^ ]+ [^ ]+ ({_begin_with(30, 31, last=_DAYS)} {_begin_with(2, last=_MONTH)}"
    f"|{_begin_with(31, last=_DAYS)} {_begin_with(2, 4, 6, 9, 11, last=_MONTH)}) [*]"
)

OPERATION_RULES: Final[RuleTable] = {
    operation.MachineOperationSpec: (
        ValidationRule(
            "has(self.machineRef) != has(self.machineSelector)",
            "exactly one of machineRef and machineSelector must be set",
        ),
        ValidationRule(_SELECTS, "machineSelector must not be empty: name at least one label", ".machineSelector"),
        ValidationRule(
            "!has(self.strategy) || has(self.machineSelector)",
            "strategy needs machineSelector: an operation with machineRef has one target",
            ".strategy",
        ),
        ValidationRule(
            "!has(self.strategy) || !has(self.strategy.stages)"
            " || self.strategy.stages.all(s, !has(s.maxConcurrent) || type(s.maxConcurrent) != int"
            " || s.maxConcurrent <= self.maxConcurrent)",
            "maxConcurrent of a stage must not exceed spec.maxConcurrent, the limit of all stages together",
            ".strategy.stages",
        ),
        ValidationRule(
            "!has(self.paused) || !self.paused || has(self.machineSelector)",
            "paused needs machineSelector: `machine pause` pauses the operations on one Machine",
            ".paused",
        ),
        ValidationRule(
            "!has(self.retryFailed) || self.retryFailed == 0"
            " || has(self.strategy) && has(self.strategy.onFailure)"
            f" && self.strategy.onFailure == '{operation.FailurePolicy.HALT}'",
            "retryFailed needs strategy.onFailure Halt: otherwise create another operation",
            ".retryFailed",
        ),
        ValidationRule(
            "(has(self.retryFailed) ? self.retryFailed : 0) >= (has(oldSelf.retryFailed) ? oldSelf.retryFailed : 0)",
            "retryFailed can only be raised",
            ".retryFailed",
        ),
        ValidationRule(
            f"self.operationKind != '{operation.OperationKind.HOST_RESCUE}' || (has(self.parameters)"
            f" && 'authorizedKeys' in self.parameters && self.parameters['authorizedKeys'].matches(r'{RESCUE_KEYS}'))",
            f"HostRescue needs parameters.authorizedKeys: 1 to {RESCUE_KEYS_MAX} lines, each an OpenSSH public key"
            f" without options, {RESCUE_KEY_FORM}",
            ".parameters",
        ),
        ValidationRule(
            "!has(self.parameters) || !('acceptPCRs' in self.parameters)"
            f" || self.parameters['acceptPCRs'].matches(r'{PCR_LIST}')"
            f" && !self.parameters['acceptPCRs'].matches(r'{PCR_TWICE}')",
            f"parameters.acceptPCRs must be {PCR_FORM}",
            ".parameters",
        ),
        *map(
            immutable,
            (
                "operationKind",
                "machineRef",
                "machineSelector",
                "parameters",
                "drain",
                "override",
                "startDeadlineSeconds",
                "maxConcurrent",
                "maxFailures",
                "strategy",
            ),
        ),
        ValidationRule(
            "self.cancel || !oldSelf.cancel",
            "cancel can change from false to true only",
            ".cancel",
        ),
        ValidationRule(
            "!has(oldSelf.abandon) || !oldSelf.abandon || (has(self.abandon) && self.abandon)",
            "abandon can change from false to true only",
            ".abandon",
        ),
    ),
    operation.OperationStrategy: (_starts_after("strategy"),),
    configuration.RollingUpdate: (_starts_after("rollingUpdate"),),
    operation.RolloutStage: (
        ValidationRule(one_of("size", "machineSelector"), "exactly one of size and machineSelector must be set"),
        ValidationRule(_SELECTS, "machineSelector must not be empty: name at least one label", ".machineSelector"),
        _share("size"),
        _share("maxConcurrent"),
    ),
    operation.StageStart: (
        ValidationRule(
            "!has(self.targets)"
            f" || (type(self.targets) == int ? self.targets >= 1 : self.targets == '{operation.ALL}')",
            f"targets must be a number from 1, or {operation.ALL}",
            ".targets",
        ),
    ),
    operation.MachineOperation: (
        ValidationRule(
            f"!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in [{_TERMINAL}])"
            " || (has(self.status)"
            f" && {unchanged('status.phase')} && {unchanged('status.reason')} && {unchanged('status.completedAt')})",
            "Complete and Failed are final: phase, reason and completedAt are immutable",
            ".status.phase",
        ),
    ),
    MachineDisruptionBudgetSpec: (
        ValidationRule(
            "(has(self.machineSelector.matchLabels) && size(self.machineSelector.matchLabels) > 0)"
            " || (has(self.machineSelector.matchExpressions) && size(self.machineSelector.matchExpressions) > 0)",
            "machineSelector must not be empty: name at least one label",
            ".machineSelector",
        ),
        ValidationRule(
            "has(self.schedule) == has(self.durationSeconds)",
            "schedule and durationSeconds need each other",
            ".schedule",
        ),
        ValidationRule(
            "has(self.schedule) || !has(self.timeZone)",
            "timeZone needs a schedule",
            ".timeZone",
        ),
        ValidationRule(
            "!has(self.timeZone) || "
            "self.timeZone != 'Local' && timestamp('2030-01-01T00:00:00Z').getHours(self.timeZone) >= 0",
            "timeZone must be a name of the IANA database, such as Europe/Berlin",
            ".timeZone",
        ),
        ValidationRule(
            f"!has(self.schedule) || (self.schedule.matches(r'{_CRON}') && {_ASCENDING})",
            "schedule must have five fields: minute (0-59), hour (0-23), day (1-31), month (1-12), weekday (0-7),"
            " each *, a number, an ascending range, a list, or one of them with a step such as */15",
            ".schedule",
        ),
        ValidationRule(
            f"!has(self.schedule) || !self.schedule.matches(r'{_NEVER}')",
            "schedule never comes: its months have no such day",
            ".schedule",
        ),
        ValidationRule(
            "!has(self.groupBy) || size(self.groupBy) < 2 || self.groupBy[0] != self.groupBy[1]",
            "groupBy must name each label key once",
            ".groupBy",
        ),
    ),
}
