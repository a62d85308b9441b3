"""A provider for EC2 meets the contract, on moto: a third-party EC2, called with the current SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.machineops.ec2 import OPERATION, EC2Session, EC2Subject, _tag
from unbounded.machineops.provider import Job, Keep, Progress, State
from unbounded.machineops.testing import ProviderContract, Trouble

pytestmark = pytest.mark.slow

TROUBLES = {
    Trouble.THROTTLED: "RequestLimitExceeded",
    Trouble.DOWN: "InternalError",
    Trouble.LOST: "lost",
    Trouble.IGNORED: "deaf",
    Trouble.LAGGING: "",
    Trouble.STALE: "",
    Trouble.UNKNOWN: "lost",
    None: "",
}


class TroubledEC2(EC2Subject):
    async def set_trouble(self, trouble: Trouble | None) -> None:
        if trouble not in TROUBLES:
            raise NotImplementedError
        self.front.trouble = TROUBLES[trouble]
        self.front.hidden = trouble is not Trouble.STALE
        is_of_lists = trouble in (Trouble.LAGGING, Trouble.STALE, Trouble.UNKNOWN)
        self.front.before = {each["InstanceId"]: each for each in self._all().values()} if is_of_lists else None


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # reading those takes more than a second
    with mock_aws():
        yield


class TestEC2(ProviderContract):
    within_s = 10.0
    poll_s = 0.01
    cuts = 3
    # moto is in this process, takes whatever login there is, and has no long calls
    test_another_process_continues_a_requested_call = None  # type: ignore[assignment]
    test_rejected_login_is_reported_despite_an_earlier_one = None  # type: ignore[assignment]
    test_failed_long_call_is_followed_to_its_failure = None  # type: ignore[assignment]
    test_paged_list_is_read_to_its_end = None  # type: ignore[assignment]
    test_other_sessions_continue_while_a_cloud_is_slow = None  # type: ignore[assignment]
    test_cancelled_call_ends = None  # type: ignore[assignment]
    test_same_name_in_another_account_is_another_instance = None  # type: ignore[assignment]

    @pytest.fixture
    def subject(self, aws: None) -> EC2Subject:
        return TroubledEC2()


class _Believing(EC2Session):
    """Takes a request for its result."""

    async def follow(self, job: Job, handle: str) -> Progress:
        return Progress(State.DONE, (await self.look(job.instance)).detail, "EC2")


class _Tokenless(EC2Session):
    """Searches for its launched instance, and launches it if it is not shown, without a ClientToken."""

    async def _launch(self, job: Job, keep: Keep, user_data: str, before: float) -> None:
        if not any(_tag(each, OPERATION) == job.uid for each in await self._read()):
            await super()._launch(job, keep, user_data, before)

    def token(self, job: Job) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(
    "test",
    [
        "test_late_request_of_a_former_process_makes_no_second_instance",
        "test_lagging_lists_are_not_taken_as_complete",
        "test_launch_of_unknown_outcome_is_done_once",
    ],
)
def test_the_contract_finds_a_provider_without_idempotency_tokens(test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(TestEC2(), test)(TroubledEC2(_Tokenless))


@pytest.mark.parametrize("subject", [EC2Subject, TroubledEC2])
def test_contract_detects_a_provider_that_reports_requests_as_reboots(subject: type[EC2Subject]) -> None:
    with pytest.raises(AssertionError, match="DONE"):
        TestEC2().test_failed_restart_is_not_reported_as_done(subject(_Believing))
