"""Test class of the contract, with the tests of a provider's description."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unbounded.machineops import registry
from unbounded.machineops.provider import API_VERSION, Instance, Power, SecretStr, Session
from unbounded.machineops.testing.base import Contract
from unbounded.machineops.testing.driving import session_of
from unbounded.machineops.testing.operations import PowerTests, ReplacementTests
from unbounded.machineops.testing.sharing import SharingTests
from unbounded.machineops.testing.subject import CountingBudget, Subject
from unbounded.machineops.testing.troubles import TroubleTests


class DescriptionTests(Contract):
    def test_it_describes_itself_soundly(self, subject: Subject) -> None:
        assert hasattr(subject.provider, "api_version"), f"it does not declare api_version, such as {API_VERSION!r}"
        assert registry.faults(subject.provider) == []
        assert subject.provider.modes

    def test_a_provider_id_names_an_instance_and_other_text_is_refused_in_words(self, subject: Subject) -> None:
        instance = subject.provider.instance(subject.missing)
        assert instance == subject.provider.instance(subject.missing)
        assert instance.id
        assert instance.scope
        assert instance.name
        for text in ("", " ", "elsewhere://a/b", "/", subject.missing.partition(":")[0] + ":"):
            with pytest.raises(ValueError, match=r"\w"):
                subject.provider.instance(text)

    def test_however_an_instance_is_written_it_has_one_id(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            one = subject.provider.instance(provider_id)
            async with session_of(subject) as (session, _):
                for spelling in _spellings(provider_id):
                    try:
                        other = subject.provider.instance(spelling)
                    except ValueError:
                        continue
                    if other.id != one.id:
                        assert await self._is_gone(session, other), f"{spelling!r} finds {one.name} under another id"
                    else:
                        assert other.scope == one.scope, f"{spelling!r} counts for another account"

        self.run(story())

    async def _is_gone(self, session: Session, instance: Instance) -> bool:
        try:
            return (await session.look(instance)).power is Power.GONE
        except Exception:  # the account of this login may not exist
            return True

    def test_connecting_sends_nothing_and_names_the_key_it_cannot_read(self, subject: Subject) -> None:
        async def story() -> None:
            budget = CountingBudget()
            session = subject.provider.connect(subject.login, budget)
            await session.close()
            assert budget.calls == 0
            garbage = "g4rb4ge-\x00"
            for key in subject.login.secret:
                broken = replace(subject.login, secret={**subject.login.secret, key: SecretStr(garbage)})
                try:
                    await subject.provider.connect(broken, budget).close()
                except ValueError as error:
                    assert key in str(error)
                    assert garbage not in str(error)

        self.run(story())


def _spellings(provider_id: str) -> list[str]:
    """Return other spellings, as users and tools produce them."""
    scheme, mark, rest = provider_id.partition("://")
    return [
        f"{scheme}{mark}{rest.upper()}",
        f"{scheme}{mark}{rest.lower()}",
        f"{scheme.upper()}{mark}{rest}",
        f"{provider_id}/",
        f"{provider_id} ",
        f"{scheme}{mark}/{rest}",
        f"{scheme}{mark}{rest.replace('/', '//')}",
    ]


class ProviderContract(DescriptionTests, PowerTests, TroubleTests, SharingTests, ReplacementTests):
    """Tests that every provider must pass. A subclass has the fixture `subject`, and may change the numbers."""
