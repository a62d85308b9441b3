"""Test class of the contract."""

from __future__ import annotations

from unbounded.machineops.testing.describing import Describing
from unbounded.machineops.testing.powering import Powering
from unbounded.machineops.testing.replacing import Replacing
from unbounded.machineops.testing.sharing import Sharing
from unbounded.machineops.testing.troubles import Troubles


class ProviderContract(Describing, Powering, Troubles, Sharing, Replacing):
    """Tests that every provider must pass. A subclass has the fixture `subject`, and may change the numbers."""
