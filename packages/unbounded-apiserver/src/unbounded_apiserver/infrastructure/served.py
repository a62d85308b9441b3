"""The resources of this package, as the catalog serves them."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver.infrastructure.events import EVENTS_V1
from unbounded_apiserver.infrastructure.resource_slices import RESOURCE_SLICES
from unbounded_apiserver.infrastructure.runtime_classes import RUNTIME_CLASSES
from unbounded_apiserver.infrastructure.storage import RESOURCES as STORAGE

INFRASTRUCTURE: Final = (EVENTS_V1, RESOURCE_SLICES, RUNTIME_CLASSES, *STORAGE)
