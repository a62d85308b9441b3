"""Simulated BMCs: real HTTPS Redfish endpoints on loopback, with hosts behind them, that misbehave on demand.

- `LabBmc` runs one in the process of a test, `start_fleet` many in their own processes.
- `python -m unbounded_lab.bmc` is the command for users.
- A BMC's behaviour is pure (`device.py`, `service.py`): time comes in as a value. Only `local.py` uses sockets.
- `misbehaviours/` has the faults and their sources.
"""

from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostEvent, HostPower, Press
from unbounded_lab.clock import LoopClock, ManualClock
from unbounded_lab.faults import FOR_EVER

__all__ = ["FOR_EVER", "BmcFaults", "HostEvent", "HostPower", "LabBmc", "LoopClock", "ManualClock", "Press"]
