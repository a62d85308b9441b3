"""Test class of the contract."""

from __future__ import annotations

from unbounded.machineops.testing.describing import DescriptionTests
from unbounded.machineops.testing.powering import PowerTests
from unbounded.machineops.testing.replacing import ReplacementTests
from unbounded.machineops.testing.sharing import SharingTests
from unbounded.machineops.testing.troubles import TroubleTests


class ProviderContract(DescriptionTests, PowerTests, TroubleTests, SharingTests, ReplacementTests):
    """Tests that every provider must pass. A subclass has the fixture `subject`, and may change the numbers."""
