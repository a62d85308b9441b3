"""The contract of a provider, as tests that its author runs against it with pytest.

    class TestAcme(ProviderContract):
        @pytest.fixture
        def subject(self) -> Subject:
            return AcmeSubject()

The subject makes instances, and says what became of them by another way than the provider's. Each test makes its own.
A replacement is cut off before each call of the cloud, which is where a provider asks its budget, and before something
is kept; and begun again by another session: at the end there is one instance, it is the one that the Machine would be
bound to, and it was given its user data, and what else the account has is as it was. A subject that is `Troubled`, too,
can have the cloud turn requests away, lose its answers and more; one that is `LogsIn` has a login that the cloud
refuses. Without these, what a provider makes of it is not tested, and those tests are skipped.
"""

from __future__ import annotations

from typing import Final

import pytest

# An author sees the two sides of what is not equal, also where this is installed beside his tests.
MODULES: Final = ("base", "budgets", "describing", "driving", "powering", "replacing", "sharing", "troubles")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))

from unbounded.machineops.testing.contract import ProviderContract  # noqa: E402
from unbounded.machineops.testing.subject import Accounts, LogsIn, MadeAnew, Names, Subject, Trouble, Troubled  # noqa: E402

__all__ = ["Accounts", "LogsIn", "MadeAnew", "Names", "ProviderContract", "Subject", "Trouble", "Troubled"]
