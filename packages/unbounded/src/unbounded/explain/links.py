"""Elements of an explanation.

The elements are links from the subject to the first cause, and the commands that resolve the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

# prefix of this program's commands in every Fix; `links_with_program` replaces it by the program's name
PLUGIN: Final = "kubectl unbounded"


class LinkCode(StrEnum):
    """Codes of links for which no condition, no operation and no phase has a reason."""

    BEING_DELETED = "BeingDeleted"
    COUNTER_RAISED = "CounterRaised"
    JOINING = "Joining"
    LOCK_RELEASED = "LockReleased"
    NEXT_STEP_DUE = "NextStepDue"
    NODE_NOT_READY = "NodeNotReady"
    NODE_RECREATION = "NodeRecreation"
    NOT_FOUND = "NotFound"
    NOT_PROCESSED = "NotProcessed"
    NOT_READABLE = "NotReadable"  # the reader has no permission
    NOT_REPORTED = "NotReported"  # no agent has ever reported
    NOT_RUNNING = "NotRunning"
    NOT_SET_UP = "NotSetUp"
    OF_HOST = "OfBareMetalHost"
    ON_DELETE = "OnDelete"
    OPERATION_OPEN = "OperationOpen"
    POD_BLOCKS_DRAIN = "PodBlocksDrain"
    PROVISIONING = "Provisioning"
    READY = "Ready"
    RUNNING = "Running"
    SELECTOR_UNRESOLVED = "SelectorUnresolved"
    SILENT = "Silent"
    STARTING = "Starting"
    UPDATE_BLOCKED = "UpdateBlocked"
    UPDATE_FAILED = "UpdateFailed"
    UPDATE_PENDING = "UpdatePending"


class Fix(msgspec.Struct, frozen=True, rename="camel"):
    """A command that unblocks, quoted for a shell, and its effect; capital words in it are placeholders.

    Attributes:
        once_ended: shown only after the operation's end, as it would act twice, or on another machine, before.
    """

    command: str
    does: str
    once_ended: bool = False


_RENAMED: Final = {"held_by": "heldBy", "until_event": "untilEvent", "next_step": "next"}


class ExplainLink(msgspec.Struct, frozen=True, rename=_RENAMED):
    """A blocked object, or the cause that blocks others.

    Attributes:
        about: `machine/m1`, `operation/reboot-1`, or the process: `metalman/lab`.
        what: its state or the reason for waiting, in the words of the code that decided.
        code: the reason in CamelCase: of an operation, a condition or a phase, else of the explanation itself.
        held_by: the blocker; empty for a first cause.
        since, until: RFC 3339 by their writer's clock; empty where none is recorded.
        until_event: event or action that ends the wait; empty where none is recorded.
        then: what happens at `until`, if the event has not come by then.
        next_step: what happens without intervention.
        topic: the kind of the object or process in a chain; empty for a blocker of a plan.
        namespace, name: of that object; of the Machine for its pause, lock and condition.
    """

    about: str
    what: str
    code: str
    held_by: str = ""
    since: str = ""
    until: str = ""
    until_event: str = ""
    then: str = ""
    next_step: str = ""
    fixes: tuple[Fix, ...] = ()
    topic: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def end(self) -> str:
        """When the wait ends, in words; empty where that is not recorded."""
        at = f"{self.until}{f': {self.then}' if self.then else ''}" if self.until else ""
        if not self.until_event:
            return f"until {at}" if at else ""
        return f"until {self.until_event}{f'; at {at}' if at else ''}"


def links_with_program(links: Sequence[ExplainLink], program: str) -> tuple[ExplainLink, ...]:
    """Return the links with this program's name in its commands: a user of `unbounded …` may have no kubectl."""
    return tuple(replace(link, fixes=tuple(with_program(fix, program) for fix in link.fixes)) for link in links)


def with_program(fix: Fix, program: str) -> Fix:
    """Return a fix with this program's name in its command."""
    ours = fix.command.startswith(f"{PLUGIN} ")
    return replace(fix, command=program + fix.command.removeprefix(PLUGIN)) if ours else fix


class Topic(Enum):
    MACHINE = "machine"
    OPERATION = "operation"
    PAUSE = "pause"
    LOCK = "lock"
    EXECUTOR = "executor"
    MACHINA = "machina"
    NODE = "node"
    CONDITION = "condition"
    CONFIGURATION = "configuration"
    CLAIM = "claim"
    HOST = "host"
    CLUSTER = "cluster"
    POOL = "pool"
    RELEASE = "release"
    CREDENTIAL = "credential"
    PROFILE = "profile"
    TEMPLATE = "template"
    SUBNET = "subnet"
    IPAM_HOST = "ipam-host"
    CONTAINER_CLOUD = "container-cloud"


@dataclass(frozen=True)
class LinkSubject:
    """Subject of the next link.

    Attributes:
        name: of the operation for OPERATION, of the configuration for CONFIGURATION, of the executor as the status
            names it for EXECUTOR, NAMESPACE/NAME for CLAIM (a Machine of cluster.k8s.io), HOST, CLUSTER and POOL,
            else of the Machine; empty for a process, and for a PAUSE of everything.
    """

    topic: Topic
    name: str = ""


@dataclass(frozen=True)
class Explained:
    """A link and the next subject; None where the link is the first cause."""

    link: ExplainLink
    then: LinkSubject | None = None


class UnreadFact(msgspec.Struct, frozen=True, rename="camel"):
    """A fact that an explanation leaves out, without the name of an object.

    Attributes:
        resource: `nodes`, `machines.unbounded-cloud.io`.
        what: `its Node`.
        code: Forbidden, or Unreadable.
        message: the reason.
    """

    resource: str
    what: str
    code: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.what} {self.message}"
