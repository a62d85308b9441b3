"""Contract of a provider, as tests that its author runs against it with pytest.

    class TestAcme(ProviderContract):
        @pytest.fixture
        def subject(self) -> Subject:
            return AcmeSubject()

The subject creates instances, and reports their true state by another way than the provider's. Each test creates its
own. A replacement is interrupted before each call of the cloud, where a provider acquires its budget, and before each
store of its state. Another session resumes it. At the end exactly one instance exists, the Machine would be bound to
it, it has received its user data, and the rest of the account is unchanged.

A subject that is also `Troubled` can let the cloud refuse requests, lose answers and more. One that is `LogsIn` has a
login that the cloud refuses. Without these, the tests of those situations are skipped.
"""

from __future__ import annotations

from typing import Final

import pytest

# pytest shows both sides of a failed comparison to an author, also with an installed package.
MODULES: Final = ("base", "contract", "driver", "failures", "operations", "subject")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))

from unbounded.machineops.testing.contract import ProviderContract  # noqa: E402
from unbounded.machineops.testing.subject import Accounts, LogsIn, MadeAnew, Names, Subject, Trouble, Troubled  # noqa: E402

__all__ = ["Accounts", "LogsIn", "MadeAnew", "Names", "ProviderContract", "Subject", "Trouble", "Troubled"]
