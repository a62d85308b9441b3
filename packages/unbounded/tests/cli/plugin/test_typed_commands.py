"""Commands as words, as a console offers them: plan one, then perform it."""

from __future__ import annotations

import pytest

from tests.cli.plugin.conftest import Cli
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plugin.command import CliError
from unbounded.cli.plugin.typed_commands import intent_of_words, perform_intent
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.plan.changes import plan_intent

pytestmark = pytest.mark.slow


async def test_command_is_planned_and_then_performed(api: HttpApi, cli: Cli) -> None:
    await api.create(MACHINES, {"metadata": {"name": "typed-1"}, "spec": {}})
    pause = await intent_of_words(api, ("machine", "pause", "typed-1"))
    plan = await plan_intent(api, pause)
    assert (len(plan.changes), plan.is_refused) == (1, False)
    assert ANNOTATION_PAUSED not in (await api.get(MACHINES, "typed-1")).metadata.annotations
    (written,) = await perform_intent(api, pause)
    assert ANNOTATION_PAUSED in written["metadata"]["annotations"]

    words = ("machine", "operation", "create", "typed-op", "--kind", "AgentReset", "--machine", "typed-1")
    create = await intent_of_words(api, words)
    assert (create.destroys, bool(create.loses)) == (("typed-1",), True)
    planned = await plan_intent(api, create)
    assert planned.hash in (await cli("plan", *words)).out
    with pytest.raises(NotFound):
        await api.get(MACHINE_OPERATIONS, "typed-op")
    (made,) = await perform_intent(api, create)
    assert made["metadata"]["uid"] == (await api.get(MACHINE_OPERATIONS, "typed-op")).metadata.uid


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("why", "m1"), "does not support why m1"),
        (("machine",), "does not support machine"),
        (("machine", "pause"), "MACHINE --all is required"),
        (("machine", "pause", "m1", "--no-such-flag"), "unrecognized arguments: --no-such-flag"),
        (("machine", "pause", "m1", "--help"), "are for a terminal"),
        (("machine", "pause", "m1", "--kubeconfig", "/etc/other"), "--kubeconfig: the login is that of the caller"),
        (("machine", "pause", "m1", "--as", "root"), "--as-user: the login is that of the caller"),
        (("machine", "operation", "create", "op", "--kind", "Explode", "--machine", "m1"), "unknown kind"),
    ],
)
async def test_words_that_are_no_command_are_an_error_and_end_nothing(
    api: HttpApi, words: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(CliError, match=fault):
        await intent_of_words(api, words)
