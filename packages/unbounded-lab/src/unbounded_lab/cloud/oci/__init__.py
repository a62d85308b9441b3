"""A simulated Oracle cloud: Compute, with the parts of VirtualNetwork, Blockstorage, Identity and WorkRequests it
needs.

`LabOci` runs one in the process of a test; `unbounded lab cloud` is the command for users. A tenancy is pure
(`tenancy.py`, `launching.py`, `power.py`), `service.py` implements its API, `local.py` serves it.
"""

from unbounded_lab.cloud.oci.lifecycle import InstanceAction, InstanceState
from unbounded_lab.cloud.oci.local import LabOci
from unbounded_lab.cloud.oci.misbehaviours import OciFaults
from unbounded_lab.cloud.oci.tenancy import OciTimes

__all__ = ["InstanceAction", "InstanceState", "LabOci", "OciFaults", "OciTimes"]
