"""Resources beside Pods and Nodes that kubelets, storage and device drivers expect.

They are only stored and validated: nothing here attaches volumes or allocates devices.
"""

from typing import Final

from unbounded_apiserver.kubelet_types.events import EVENTS_V1
from unbounded_apiserver.kubelet_types.node_resources import RESOURCE_SLICES, RUNTIME_CLASSES
from unbounded_apiserver.kubelet_types.storage import RESOURCES as STORAGE

KUBELET_TYPES: Final = (EVENTS_V1, RESOURCE_SLICES, RUNTIME_CLASSES, *STORAGE)
