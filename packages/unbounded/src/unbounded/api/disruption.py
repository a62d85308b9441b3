"""Disruptions of Machines that have a Node: drains, maintenance, and the record of one in progress."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import ApiStruct, Count, Field, Int32, LabelKey, Message, ObjectName, Time
from unbounded.api.meta import Condition, Kind, LabelSelector, Object
from unbounded.api.names import GROUP, VERSION

MAX_BLOCKERS: Final = 32
MAX_BUDGETS: Final = 32  # that select one Machine
MAX_GRANTS: Final = 1000
MAX_GROUPS: Final = 256
MAX_UNAVAILABLE: Final = r"^(100|[1-9]?[0-9])%$"
SCHEDULE: Final = r"^[0-9*/,-]+( [0-9*/,-]+){4}$"
TIME_ZONE: Final = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
MAINTENANCE: Final = "Maintenance"  # the kind of a holder that is no operation: spec.maintenance of its Machine
HOLD: Final = "hold.unbounded-cloud.io/"  # annotations of a Node with which applications hold its drain


class DrainMode(StrEnum):
    """Condition for the drain of the Node before an operation."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class DrainTimeout(StrEnum):
    """The consequence of a drain that exceeds its limit."""

    FAIL = "Fail"
    PROCEED = "Proceed"


class DrainSettings(ApiStruct, frozen=True, kw_only=True):
    """The settings of the drain of a Node."""

    timeout_seconds: Annotated[
        Int32 | None, Field("Limit of the drain, holds included. Defaults to 3600.", minimum=1, maximum=604800)
    ] = None
    delete_empty_dir_data: Annotated[
        bool | None, Field("Evict pods although an emptyDir volume of them is lost. Defaults to true.")
    ] = None
    evict_unmanaged: Annotated[
        bool | None,
        Field("Evict pods although no controller would create them again. Defaults to false: such a pod blocks."),
    ] = None
    skip_pod_selector: Annotated[
        LabelSelector | None, Field("Pods that stay on the Node, by their labels. If absent or empty, none.")
    ] = None
    stuck_pod_seconds: Annotated[
        Int32 | None,
        Field(
            "Seconds beyond its grace period after which a terminating pod counts as stuck. If the Node is not Ready "
            "and the host was observed Off, such a pod counts as gone. Defaults to 300.",
            minimum=0,
            maximum=604800,
        ),
    ] = None
    on_timeout: Annotated[
        str | None,
        Field(
            "Fail: the operation fails, and the Node is usable again. Proceed: the operation continues with the "
            "remaining pods. Defaults to Fail.",
            enum=tuple(DrainTimeout),
        ),
    ] = None


class OperationDrain(DrainSettings, frozen=True, kw_only=True):
    """The drain of a Node before the operation."""

    mode: Annotated[
        str,
        Field(
            "Always: drain the Node before the operation. Never: do not drain it. Auto: drain it where a disruption "
            "budget of the Machine or its maintenance says so. Defaults to Auto.",
            enum=tuple(DrainMode),
        ),
    ] = DrainMode.AUTO


class MaintenanceSpec(ApiStruct, frozen=True, kw_only=True):
    """Maintenance of a Machine by people."""

    enabled: Annotated[
        bool,
        Field(
            "While true, the Node is drained and cordoned, and operations of disruptive kinds start without a drain "
            "of their own."
        ),
    ] = False
    reason: Annotated[str | None, Field("Reason for the maintenance, for users.", max_length=256)] = None


class DisruptionStage(StrEnum):
    """The stages of a disruption, in their order."""

    WAITING = "Waiting"
    GRANTED = "Granted"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    DRAINED = "Drained"
    WORKING = "Working"
    RETURNING = "Returning"


class DisruptionHolder(ApiStruct, frozen=True, kw_only=True):
    """The reason for a disruption: a MachineOperation, or the maintenance of the Machine."""

    kind: Annotated[str, Field("Kind of the operation, such as HostReboot; or Maintenance.", max_length=63)]
    name: Annotated[ObjectName, Field("Name of the operation, or of the Machine.")]
    uid: Annotated[str, Field("UID of it.", max_length=128)]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind != MAINTENANCE else f"maintenance of Machine {self.name}"


class DrainBlocker(ApiStruct, frozen=True, kw_only=True):
    """A pod that cannot be evicted now."""

    pod: Annotated[str, Field("NAMESPACE/NAME of the pod.", max_length=320)]
    why: Annotated[str, Field("Cause, for users.", max_length=1024)]
    held_by: Annotated[
        str | None, Field("Object that blocks, such as PodDisruptionBudget NAMESPACE/NAME.", max_length=512)
    ] = None
    since: Annotated[Time, Field("Time at which it was first blocked.")]


class DrainProgress(ApiStruct, frozen=True, kw_only=True):
    """The progress of a drain."""

    left: Annotated[Count, Field("Number of pods that have yet to leave the Node.")] = 0
    blockers: Annotated[
        tuple[DrainBlocker, ...],
        Field("Pods that cannot be evicted now.", max_items=MAX_BLOCKERS, map_keys=("pod",)),
    ] = ()


class DisruptionStatus(ApiStruct, frozen=True, kw_only=True):
    """The disruption of the Machine's Node. An operation of a disruptive kind starts in stage Drained, which is Working
    from then on.
    """

    holder: Annotated[DisruptionHolder, Field("Holder of the disruption.")]
    stage: Annotated[str, Field("Stage of the disruption.", enum=tuple(DisruptionStage))]
    reason: Annotated[str | None, Field("Cause of the wait in this stage, in CamelCase.", max_length=128)] = None
    message: Annotated[Message | None, Field("Progress or cause of the wait, for users.")] = None
    held_by: Annotated[str | None, Field("Object that it waits for.", max_length=1024)] = None
    node_uid: Annotated[
        str | None, Field("UID of the Node at the grant; absent if there was none.", max_length=128)
    ] = None
    boot_id: Annotated[str | None, Field("Boot ID of the Node at that time.", max_length=128)] = None
    cordoned: Annotated[bool, Field("True if this disruption cordoned the Node, and will uncordon it.")] = False
    worked: Annotated[bool, Field("True once the holder has started: the Node then has to prove that it is back.")] = (
        False
    )
    drain: Annotated[
        DrainProgress | None,
        Field("Progress of the drain, in stage Draining; later the pods that were left when the holder started."),
    ] = None
    since: Annotated[Time, Field("Begin of the stage.")]
    budgets: Annotated[
        tuple[ObjectName, ...],
        Field("MachineDisruptionBudgets that granted it.", max_items=MAX_BUDGETS),
    ] = ()
    overridden: Annotated[bool, Field("True if it was granted over a budget, by spec.override of the operation.")] = (
        False
    )
    until: Annotated[Time | None, Field("Limit of the drain, or time of the next attempt.")] = None
    silences: Annotated[Count, Field("Number of drains in a row after which no executor started the operation.")] = 0


class BudgetDrain(DrainSettings, frozen=True, kw_only=True):
    """The drain before an operation that the budget covers."""

    enabled: Annotated[
        bool | None,
        Field("Drain the Node, unless drain.mode of the operation is Never. Defaults to true."),
    ] = None


class MachineDisruptionBudgetSpec(ApiStruct, frozen=True, kw_only=True):
    """The Machines that the budget covers, and how many of them may be unavailable."""

    machine_selector: Annotated[LabelSelector, Field("Machines, by their labels. Never empty.")]
    group_by: Annotated[
        tuple[LabelKey, ...],
        Field(
            "Label keys, such as that of a rack: the limit holds for each of their values. Machines without a label "
            "are one group.",
            max_items=2,
        ),
    ] = ()
    max_unavailable: Annotated[
        int | str,
        Field(
            "Number of Machines that may be unavailable at a time, or their share such as 20%, rounded down. 0 allows "
            "no disruption.",
            pattern=MAX_UNAVAILABLE,
            max_length=4,
            minimum=0,
        ),
    ]
    schedule: Annotated[
        str | None,
        Field(
            "Begin of the times at which the budget counts, as a cron expression of five fields: minute, hour, day of "
            "the month, month, day of the week. If absent, it always counts. It needs durationSeconds.",
            pattern=SCHEDULE,
            min_length=9,
            max_length=128,
        ),
    ] = None
    duration_seconds: Annotated[
        Int32 | None,
        Field("Duration for which the budget counts from each begin.", minimum=60, maximum=2678400),
    ] = None
    time_zone: Annotated[
        str | None,
        Field("Time zone of the schedule, such as Europe/Berlin. Defaults to UTC.", pattern=TIME_ZONE, max_length=64),
    ] = None
    drain: Annotated[BudgetDrain | None, Field("Drain of the Node before the operation.")] = None
    min_ready_seconds: Annotated[
        Int32 | None,
        Field("Seconds for which a Node is Ready before its grant ends. Defaults to 10.", minimum=0, maximum=86400),
    ] = None


class BudgetGrant(ApiStruct, frozen=True, kw_only=True):
    """The permission to make one Machine unavailable."""

    machine: Annotated[ObjectName, Field("Name of the Machine.")]
    machine_uid: Annotated[str, Field("UID of the Machine.", max_length=128)]
    holder: Annotated[DisruptionHolder, Field("Holder of the grant.")]
    since: Annotated[Time, Field("Time of the grant.")]


class BudgetGroup(ApiStruct, frozen=True, kw_only=True):
    """The Machines of one value of groupBy."""

    value: Annotated[str, Field("Values of the labels, separated by a slash; empty without groupBy.", max_length=128)]
    machines: Annotated[Count, Field("Number of Machines.")] = 0
    unavailable: Annotated[Count, Field("Number of Machines that are unavailable or granted.")] = 0
    granted: Annotated[Count, Field("Number of granted Machines.")] = 0
    allowed: Annotated[Count, Field("Number of further Machines that may become unavailable now.")] = 0


class MachineDisruptionBudgetStatus(ApiStruct, frozen=True, kw_only=True):
    """The grants of the budget, and the state of its Machines."""

    allowed: Annotated[
        Count | None, Field("Number of further Machines that may become unavailable now, in all groups.")
    ] = None
    granted: Annotated[Count | None, Field("Number of grants.")] = None
    groups: Annotated[
        tuple[BudgetGroup, ...],
        Field("Groups of Machines.", map_keys=("value",), max_items=MAX_GROUPS),
    ] = ()
    grants: Annotated[
        tuple[BudgetGrant, ...],
        Field("Grants. A Machine is granted once it is here.", map_keys=("machine",), max_items=MAX_GRANTS),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the budget.", map_keys=("type",), max_items=8)
    ] = ()


class MachineDisruptionBudget(Object, frozen=True, kw_only=True):
    """A limit for the number of Machines that operations and maintenance make unavailable at a time."""

    spec: Annotated[MachineDisruptionBudgetSpec, Field("Machines, and their limit.")]
    status: Annotated[MachineDisruptionBudgetStatus, Field("Grants, and the state of the Machines.")] = (
        MachineDisruptionBudgetStatus()
    )


MACHINE_DISRUPTION_BUDGETS: Final = Kind(
    GROUP, VERSION, "MachineDisruptionBudget", "machinedisruptionbudgets", MachineDisruptionBudget
)
