"""A simulated Azure: Resource Manager with virtual machines, disks, network interfaces and extensions, and a login.

- `resources.py` has the resources; `changes.py` and `lifecycle.py` change them, `views.py` renders them.
- `model_rules.py` and `rules.py` validate requests, with the offers and the shapes of `catalog.py`.
- `service.py` puts them behind the frontend that all clouds share; `local.py` serves it.
"""

from unbounded_lab.cloud.azure.local import LabAzure
from unbounded_lab.cloud.azure.misbehaviours import AzureFaults
from unbounded_lab.cloud.azure.model import AzureTimes, Provisioning, VmPower
from unbounded_lab.cloud.azure.seeding import VmShape

__all__ = ["AzureFaults", "AzureTimes", "LabAzure", "Provisioning", "VmPower", "VmShape"]
