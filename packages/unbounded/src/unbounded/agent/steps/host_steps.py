"""All changes of `start` to a host outside of the slots and the agent's own binary, in one list."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded.agent.steps.configured_sysctl import CONFIGURED_SYSCTL
from unbounded.agent.steps.docker import DOCKER
from unbounded.agent.steps.dropins import DROP_INS
from unbounded.agent.steps.modules import MODULES_STEP
from unbounded.agent.steps.packages import PACKAGES
from unbounded.agent.steps.rules import NFTABLES
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.agent.steps.survey import SURVEY
from unbounded.agent.steps.swap import SWAP
from unbounded.agent.steps.sysctl import SYSCTL

_CHANGES: Final = (DROP_INS, PACKAGES, MODULES_STEP, SYSCTL, CONFIGURED_SYSCTL, SWAP, DOCKER, NFTABLES)
HOST_STEPS: Final[tuple[ReversibleStep[StepHost], ...]] = (
    SURVEY,
    *(replace(step, after=(SURVEY.name, *step.after)) for step in _CHANGES),
)
