"""A provider for EC2 keeps the contract, on moto: an EC2 that others wrote, asked with today's SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.machineops.ec2 import EC2Session, EC2Subject
from unbounded.machineops.provider import Job, Progress, State
from unbounded.machineops.testing import ProviderContract, Trouble

TROUBLES = {
    Trouble.THROTTLED: "RequestLimitExceeded",
    Trouble.DOWN: "InternalError",
    Trouble.LOST: "lost",
    Trouble.IGNORED: "deaf",
    None: "",
}


class TroubledEC2(EC2Subject):
    async def set_trouble(self, trouble: Trouble | None) -> None:
        if trouble not in TROUBLES:
            raise NotImplementedError
        self.front.trouble = TROUBLES[trouble]


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # reading those takes more than a second
    with mock_aws():
        yield


class TestEC2(ProviderContract):
    within_s = 10.0
    poll_s = 0.01
    cuts = 4
    # moto is in this process, takes whatever login there is, and has no long calls
    test_another_process_goes_on_with_what_one_has_asked_for = None  # type: ignore[assignment]
    test_a_login_that_is_refused_is_said_to_be_whoever_was_logged_in_before = None  # type: ignore[assignment]
    test_a_long_call_that_fails_is_followed_to_its_failure = None  # type: ignore[assignment]
    test_a_list_that_comes_in_pages_is_read_to_its_end = None  # type: ignore[assignment]
    test_other_sessions_go_on_while_a_cloud_is_slow = None  # type: ignore[assignment]
    test_what_is_cut_off_ends = None  # type: ignore[assignment]
    test_what_has_the_same_name_in_another_account_is_another_instance = None  # type: ignore[assignment]

    @pytest.fixture
    def subject(self, aws: None) -> EC2Subject:
        return TroubledEC2()


class _Believing(EC2Session):
    """Takes a request for what it asks for."""

    async def follow(self, job: Job, handle: str) -> Progress:
        return Progress(State.DONE, (await self.look(job.instance)).detail, "EC2")


@pytest.mark.parametrize("subject", [EC2Subject, TroubledEC2])
def test_the_contract_finds_a_provider_that_takes_a_request_to_reboot_for_a_reboot(subject: type[EC2Subject]) -> None:
    with pytest.raises(AssertionError, match="DONE"):
        TestEC2().test_a_restart_that_came_to_nothing_is_not_said_to_be_done(subject(_Believing))
