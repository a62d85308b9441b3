"""A simulated Oracle cloud: Compute with what it needs of VirtualNetwork, Blockstorage, Identity and WorkRequests.

For a test in the same process there is `LabOci`, for people `unbounded lab cloud`. A tenancy is pure (`tenancy.py`,
`launching.py`, `power.py`), `service.py` speaks its API, `local.py` serves it.
"""

from unbounded.lab.cloud.oci.dials import Dials
from unbounded.lab.cloud.oci.lifecycle import Action, State
from unbounded.lab.cloud.oci.local import LabOci
from unbounded.lab.cloud.oci.tenancy import Times

__all__ = ["Action", "Dials", "LabOci", "State", "Times"]
