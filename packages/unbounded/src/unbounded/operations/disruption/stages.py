"""The stages of a disruption, as the table that decides and that the documentation is drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import Final

from unbounded.api.disruption import DisruptionStage
from unbounded.workflow.procedure import COMPLETE, Cancel, Procedure, Repeat, Stage, Step

CLAIM_WITHIN_S: Final = 120.0  # of a drained Node; then it is usable again until the next attempt


class Fact(StrEnum):
    """The results of an observation."""

    NOT_REQUESTED = "NotRequested"
    REQUESTED = "Requested"
    DELAYED = "Delayed"
    HOLDER_ENDED = "HolderEnded"
    NO_NODE = "NoNode"
    NO_DRAIN = "NoDrain"
    NODE = "Node"
    NODE_HELD = "NodeHeld"
    NODE_CHANGED = "NodeChanged"
    NOT_CORDONED = "NotCordoned"
    HELD = "Held"
    FREE = "Free"
    PODS_LEFT = "PodsLeft"
    EMPTY = "Empty"
    LATE = "Late"
    LATE_PROCEED = "LateProceed"
    NOT_CLAIMED = "NotClaimed"
    CLAIMED = "Claimed"
    AWAY = "Away"
    HOLDER_OPEN = "HolderOpen"
    BACK = "Back"


CORDON: Final = "Cordon"
EVICT: Final = "Evict"
UNCORDON: Final = "Uncordon"

_S = DisruptionStage
_ROWS: Final[Mapping[tuple[str, StrEnum], Step]] = {
    (_S.WAITING, Fact.NOT_REQUESTED): Step(COMPLETE),
    (_S.WAITING, Fact.REQUESTED): Step(_S.GRANTED),
    (_S.GRANTED, Fact.NO_NODE): Step(_S.DRAINED),
    (_S.GRANTED, Fact.NO_DRAIN): Step(_S.DRAINED),
    (_S.GRANTED, Fact.NODE): Step(_S.DRAINING, CORDON),
    (_S.GRANTED, Fact.NODE_HELD): Step(_S.CORDONED, CORDON),
    (_S.GRANTED, Fact.NOT_CORDONED): Step(_S.GRANTED, CORDON),
    (_S.GRANTED, Fact.NODE_CHANGED): Step(_S.GRANTED, CORDON),
    (_S.GRANTED, Fact.HELD): Step(_S.CORDONED),
    (_S.GRANTED, Fact.FREE): Step(_S.DRAINING),
    (_S.GRANTED, Fact.HOLDER_ENDED): Step(_S.RETURNING),
    (_S.GRANTED, Fact.BACK): Step(COMPLETE, UNCORDON),
    (_S.GRANTED, Fact.CLAIMED): Step(_S.DRAINED),
    (_S.GRANTED, Fact.DELAYED): Step(_S.WAITING, UNCORDON),
    (_S.GRANTED, Fact.LATE): Step(_S.RETURNING),
    (_S.CORDONED, Fact.HOLDER_ENDED): Step(_S.RETURNING),
    (_S.CORDONED, Fact.BACK): Step(COMPLETE, UNCORDON),
    (_S.CORDONED, Fact.CLAIMED): Step(_S.DRAINED),
    (_S.CORDONED, Fact.NO_NODE): Step(_S.DRAINED),
    (_S.CORDONED, Fact.NODE_CHANGED): Step(_S.CORDONED, CORDON),
    (_S.CORDONED, Fact.NOT_CORDONED): Step(_S.GRANTED),
    (_S.CORDONED, Fact.DELAYED): Step(_S.WAITING, UNCORDON),
    (_S.CORDONED, Fact.FREE): Step(_S.DRAINING),
    (_S.CORDONED, Fact.LATE): Step(_S.RETURNING),
    (_S.CORDONED, Fact.LATE_PROCEED): Step(_S.DRAINED),
    (_S.DRAINING, Fact.HOLDER_ENDED): Step(_S.RETURNING),
    (_S.DRAINING, Fact.BACK): Step(COMPLETE, UNCORDON),
    (_S.DRAINING, Fact.CLAIMED): Step(_S.DRAINED),
    (_S.DRAINING, Fact.NO_NODE): Step(_S.DRAINED),
    (_S.DRAINING, Fact.NODE_CHANGED): Step(_S.DRAINING, CORDON),
    (_S.DRAINING, Fact.NOT_CORDONED): Step(_S.GRANTED),
    (_S.DRAINING, Fact.DELAYED): Step(_S.WAITING, UNCORDON),
    (_S.DRAINING, Fact.HELD): Step(_S.CORDONED),
    (_S.DRAINING, Fact.PODS_LEFT): Step(_S.DRAINING, EVICT),
    (_S.DRAINING, Fact.EMPTY): Step(_S.DRAINED),
    (_S.DRAINING, Fact.LATE): Step(_S.RETURNING),
    (_S.DRAINING, Fact.LATE_PROCEED): Step(_S.DRAINED),
    (_S.DRAINED, Fact.CLAIMED): Step(_S.WORKING),
    (_S.DRAINED, Fact.HOLDER_ENDED): Step(_S.RETURNING),
    (_S.DRAINED, Fact.BACK): Step(COMPLETE, UNCORDON),
    (_S.DRAINED, Fact.NODE_CHANGED): Step(_S.DRAINING, CORDON),
    (_S.DRAINED, Fact.DELAYED): Step(_S.RETURNING),  # stored before the cordon goes: the holder cannot start then
    (_S.DRAINED, Fact.LATE): Step(_S.RETURNING),
    (_S.WORKING, Fact.HOLDER_ENDED): Step(_S.RETURNING),
    (_S.WORKING, Fact.BACK): Step(COMPLETE, UNCORDON),
    (_S.WORKING, Fact.NOT_CLAIMED): Step(_S.DRAINED),
    (_S.RETURNING, Fact.REQUESTED): Step(_S.GRANTED),
    (_S.RETURNING, Fact.HOLDER_OPEN): Step(_S.RETURNING, UNCORDON),
    (_S.RETURNING, Fact.DELAYED): Step(_S.WAITING, UNCORDON),
    (_S.RETURNING, Fact.LATE): Step(_S.WAITING, UNCORDON),
    (_S.RETURNING, Fact.BACK): Step(COMPLETE, UNCORDON),
}

_UNDO: Final = Step(COMPLETE, UNCORDON)

PROCEDURE: Final = Procedure(
    start=_S.WAITING,
    facts=Fact,
    stages={
        _S.WAITING: Stage("the Machine to be granted", math.inf, cancel=Cancel.AT_ONCE),
        _S.GRANTED: Stage(
            "the Node to be cordoned",
            3600,
            attempts=None,
            on_timeout=Step(_S.RETURNING),
            cancel=Cancel.UNDO,
            undo=_UNDO,
        ),
        _S.CORDONED: Stage(
            "holds to be removed",
            3600,
            attempts=None,
            on_timeout=Step(_S.RETURNING),
            cancel=Cancel.UNDO,
            undo=_UNDO,
        ),
        _S.DRAINING: Stage(
            "pods to leave", 3600, attempts=None, on_timeout=Step(_S.RETURNING), cancel=Cancel.UNDO, undo=_UNDO
        ),
        _S.DRAINED: Stage(
            "the operation to start",
            CLAIM_WITHIN_S,
            on_timeout=Step(_S.RETURNING),
            cancel=Cancel.UNDO,
            undo=_UNDO,
        ),
        _S.WORKING: Stage("the operation to end", math.inf),
        _S.RETURNING: Stage("the Node to be back", math.inf, attempts=None),
    },
    table={**{(stage, fact): Step(stage) for stage, fact in product(_S, Fact)}, **_ROWS},
    actions={CORDON: Repeat.SETS_STATE, EVICT: Repeat.SETS_STATE, UNCORDON: Repeat.SETS_STATE},
    proof=frozenset(),
)
