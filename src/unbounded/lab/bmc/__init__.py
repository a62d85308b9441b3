"""Simulated BMCs: real HTTPS Redfish endpoints on loopback, with hosts behind them, that misbehave on demand.

For a test in the same process there is `LabBmc`, for many BMCs in processes of their own `start_fleet`, for people the
command `python -m unbounded.lab.bmc`. What a BMC does is pure (`device.py`, `service.py`): time comes in as a value,
and `local.py` is the only place that holds a socket. The faults and where they were seen stand in `misbehaviours/`.
"""

from unbounded.lab.bmc.dials import Dials
from unbounded.lab.bmc.local import LabBmc
from unbounded.lab.bmc.power import Event, Power, Press
from unbounded.lab.clock import HandClock, LoopClock
from unbounded.lab.dials import FOR_EVER

__all__ = ["FOR_EVER", "Dials", "Event", "HandClock", "LabBmc", "LoopClock", "Power", "Press"]
