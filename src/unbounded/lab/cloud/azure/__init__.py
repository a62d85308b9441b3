"""A simulated Azure: Resource Manager with virtual machines, disks, network interfaces and extensions, and the login
endpoint of a tenant.

`estate.py` holds what there is; `shapes.py`, `bounds.py` and `rules.py` say what may be asked for, with what
`catalog.py` has on offer; `creating.py`, `changing.py` and `lifecycle.py` change it; `views.py` shows it; `service.py`
puts them behind the front that all clouds share. `local.py` serves it.
"""

from unbounded.lab.cloud.azure.dials import Dials
from unbounded.lab.cloud.azure.local import LabAzure
from unbounded.lab.cloud.azure.model import Power, Provisioning, Times
from unbounded.lab.cloud.azure.seeding import Shape

__all__ = ["Dials", "LabAzure", "Power", "Provisioning", "Shape", "Times"]
