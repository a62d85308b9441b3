"""BMCReset: restart the BMC itself. The host's power stays as it is, which the evidence says.

The proof of a restart is a later `LastResetTime`, or, where the BMC reports none, that it went away and answers again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.operation import MachineOperation
from unbounded.metalman.power import SETTLE_LIMIT_S, Table, table_rows
from unbounded.metalman.reasons import BMC_NOT_RESTARTED, POWER_CHANGED
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.pool import PooledBmc
from unbounded.operations.execution_record import Run
from unbounded.workflow.procedure import COMPLETE, Cancel, Observation, Procedure, Repeat, Stage, Step

READING_BMC: Final = "ReadingBMC"
RESTARTING_BMC: Final = "RestartingBMC"
WAITING_BMC: Final = "WaitingBMC"
COMPARING_POWER: Final = "ComparingPower"

RESTART_BMC: Final = "RestartBMC"

EVIDENCE_GONE: Final = "the BMC stopped answering after the reset was requested"
EVIDENCE_RESTART: Final = "the BMC restarted, and answers again"
_RESET_AT: Final = "before the reset, the BMC reported LastResetTime "
_POWER_WAS: Final = "before the reset, the host was "
_NO_POWER: Final = f"{_POWER_WAS}in an unknown power state"

RESTART_LIMIT_S: Final = 300.0  # a BMC may take long to begin, and some that lost the answer have restarted by then
BACK_LIMIT_S: Final = 900.0


class BmcResetFact(StrEnum):
    """Observed state of the BMC, compared with the one before the reset."""

    GONE = "Gone"
    RUNNING = "Running"  # answers, and no LastResetTime shows a restart or its absence
    SAME = "Same"  # answers, with the LastResetTime of before
    RESTARTED = "Restarted"  # answers, with another LastResetTime
    POWER_AS_BEFORE = "PowerAsBefore"
    POWER_DIFFERS = "PowerDiffers"


def _table() -> Table:
    request = Step(RESTARTING_BMC, action=RESTART_BMC)
    back = Step(COMPARING_POWER, evidence=EVIDENCE_RESTART)
    here = {BmcResetFact.RUNNING: request, BmcResetFact.SAME: request}
    gone = {BmcResetFact.GONE: Step(WAITING_BMC, evidence=EVIDENCE_GONE), BmcResetFact.RESTARTED: back}
    return {
        **table_rows(READING_BMC, BmcResetFact, here),
        **table_rows(RESTARTING_BMC, BmcResetFact, {**here, **gone}),
        **table_rows(WAITING_BMC, BmcResetFact, {BmcResetFact.RUNNING: back, BmcResetFact.RESTARTED: back}),
        **table_rows(COMPARING_POWER, BmcResetFact, {BmcResetFact.POWER_AS_BEFORE: Step(COMPLETE)}),
    }


TABLE: Final = _table()


def reset(_operation: MachineOperation) -> Procedure:
    return Procedure(
        start=READING_BMC,
        facts=BmcResetFact,
        stages={
            READING_BMC: Stage("the BMC to answer", limit_s=SETTLE_LIMIT_S, cancel=Cancel.AT_ONCE),
            RESTARTING_BMC: Stage("the BMC to restart", limit_s=RESTART_LIMIT_S),
            WAITING_BMC: Stage(
                "the BMC to answer again",
                limit_s=BACK_LIMIT_S,
                on_timeout=Step(
                    WAITING_BMC,
                    fail=BMC_NOT_RESTARTED,
                    message="the BMC stopped answering, and did not restart in time",
                ),
            ),
            COMPARING_POWER: Stage(
                "the power state of the host to be as before",
                limit_s=SETTLE_LIMIT_S,
                on_timeout=Step(
                    COMPARING_POWER, fail=POWER_CHANGED, message="the BMC restarted, and the host is not as before"
                ),
            ),
        },
        table=TABLE,
        actions={RESTART_BMC: Repeat.ONCE},
        proof=frozenset({EVIDENCE_RESTART}),
    )


async def observe(run: Run, bmc: PooledBmc, url: str) -> Observation:
    """Read the BMC. Once the reset was requested, its silence is a fact, and no failure to read it."""
    where = f"{url} manager"
    try:
        manager = await bmc.manager()
        system = await _system(bmc)
    except (bmc_interface.BmcUnreachable, bmc_interface.CircuitOpen) as silence:
        if run.stage in ("", READING_BMC):
            raise
        return Observation(BmcResetFact.GONE, str(silence), where)
    reset_at = f"LastResetTime {manager.last_reset}" if manager.last_reset else "no LastResetTime"
    detail = f"manager {manager.manager_id} reports {reset_at}; the host is {_power_text(system)}"
    recorded = frozenset(one.what for one in run.evidence)
    fact = _power_fact(recorded, system) if run.stage == COMPARING_POWER else _restart_fact(recorded, manager)
    return Observation(fact, detail, where, evidence=_findings(run.stage, recorded, manager, system, fact))


async def _system(bmc: PooledBmc) -> bmc_interface.SystemState | None:
    """Read the host's power; None where the BMC answers and cannot say: it may be reset for that reason."""
    try:
        return await bmc.system()
    except (bmc_interface.BmcUnreachable, bmc_interface.CircuitOpen, bmc_interface.PasswordRejected):
        raise
    except Failure:
        return None


def _power_text(system: bmc_interface.SystemState | None) -> str:
    return system.power_text if system is not None and system.power_text else "in an unknown power state"


def _restart_fact(recorded: frozenset[str], manager: bmc_interface.ManagerState) -> BmcResetFact:
    before = next((what for what in recorded if what.startswith(_RESET_AT)), None)
    if before is None or not manager.last_reset:
        return BmcResetFact.RUNNING
    return BmcResetFact.SAME if before == f"{_RESET_AT}{manager.last_reset}" else BmcResetFact.RESTARTED


def _power_fact(recorded: frozenset[str], system: bmc_interface.SystemState | None) -> BmcResetFact:
    before = next((what for what in recorded if what.startswith(_POWER_WAS)), _NO_POWER)
    is_same = before == _NO_POWER or before == f"{_POWER_WAS}{_power_text(system)}"
    return BmcResetFact.POWER_AS_BEFORE if is_same else BmcResetFact.POWER_DIFFERS


def _findings(
    stage: str,
    recorded: frozenset[str],
    manager: bmc_interface.ManagerState,
    system: bmc_interface.SystemState | None,
    fact: BmcResetFact,
) -> tuple[str, ...]:
    if stage in ("", READING_BMC):
        settled = system is not None and system.power is not bmc_interface.BmcPowerState.UNSETTLED
        power = f"{_POWER_WAS}{_power_text(system)}" if settled else _NO_POWER
        return (power, f"{_RESET_AT}{manager.last_reset}") if manager.last_reset else (power,)
    if fact is not BmcResetFact.POWER_AS_BEFORE:
        return ()
    if _NO_POWER in recorded:
        return (f"after the reset, the host is {_power_text(system)}; what it was before is unknown",)
    return (f"after the reset, the host is {_power_text(system)}, as before",)
