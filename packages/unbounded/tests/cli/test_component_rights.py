"""Every right of deploy/ is used by its component: a story fails without a removed right.

The stories run the controllers under their service accounts; the server reports the rights that they use. Rights that
no story here uses are listed below with the test that does. The list can neither lack one nor keep one that is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.apiserver.support import Client
from tests.cli import test_rights as stories
from tests.cli.deployed import deployed
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.cli.manifests import manifests
from unbounded_apiserver.auth import AuthAttributes, AuthChain, AuthDecision, User
from unbounded_apiserver.server import ApiServer

Served = tuple[ApiServer, Client]

COMPONENTS: Final = (
    "machina",
    "metalman",
)  # for machine-ops-controller: tests/machineops/test_process.py
# Followed objects are read in one of these ways, depending on the server, with equal results.
READING: Final = frozenset({"get", "list", "watch"})


class Right(NamedTuple):
    """One verb of one rule. `namespace` is empty for those of a ClusterRole, `name` where any name will do.

    Args:
        watched: watch is another verb of the rule.
    """

    component: str
    namespace: str
    resource: str
    name: str
    verb: str
    watched: bool = False


_OWNER: Final = "a cluster asks for it of who owns what it makes (OwnerReferencesPermissionEnforcement)"
_JOINS: Final = "tests/machina/test_approval.py"
_KEY: Final = "tests/machina/test_release_key.py: the key of releases"
_FIRST: Final = "tests/cli/test_netboot.py: proxy and authorities of what is installed"
_CONSOLES: Final = "tests/metalman/test_serial_server.py: users of serial consoles"
_BOOTS: Final = "tests/cli/test_netboot_tpm.py"
_TWICE: Final = "tests/kube/test_events.py: the second time that the same is told"
# Component, namespace, resource and verb, and where that is used.
ELSEWHERE: Final[Mapping[tuple[str, str, str, str], str]] = {
    ("machina", "", "certificatesigningrequests/approval", "patch"): _JOINS,
    ("machina", "", "signers", "approve"): _JOINS,
    ("machina", "", "nodes", "delete"): "tests/machina/test_rights.py: a Node that it has cordoned",
    ("machina", "", "machineconfigurations", "patch"): "tests/machina/test_configurations.py: pauses after a stage",
    ("machina", "", "machineconfigurations/finalizers", "update"): _OWNER,
    ("machina", "", "machineoperations/finalizers", "update"): _OWNER,
    ("machina", "unbounded-kube", "configmaps", "create"): _KEY,
    ("machina", "unbounded-kube", "configmaps", "patch"): _KEY,
    (
        "machina",
        "default",
        "services",
        "get",
    ): "tests/machina/test_serving.py: addresses of the API server",
    ("machina", "default", "events", "patch"): _TWICE,
    (
        "machina",
        "kube-system",
        "secrets",
        "get",
    ): "tests/machina/test_rights.py: a Machine that names its token",
    ("metalman", "", "pods", "list"): "tests/metalman/test_operations_erase.py: the Node of a host to erase",
    ("metalman", "", "machines/finalizers", "update"): _OWNER,
    ("metalman", "", "machineconfigurationversions", "get"): _FIRST,
    ("metalman", "", "machineconfigurationversions", "list"): _FIRST,
    (
        "metalman",
        "",
        "machineprofiles",
        "get",
    ): "tests/metalman/netboot/test_request_handler_layouts.py: layouts of profiles",
    ("metalman", "default", "events", "patch"): _TWICE,
    ("metalman", "kube-public", "configmaps", "get"): _BOOTS,
    ("metalman", "kube-public", "configmaps", "list"): _BOOTS,
    ("metalman", "kube-public", "configmaps", "watch"): _BOOTS,
    ("metalman", "kube-system", "secrets", "create"): _BOOTS,
    ("metalman", "kube-system", "secrets", "delete"): _BOOTS,
    ("metalman", "kube-system", "services", "get"): _BOOTS,
    ("metalman", "kube-system", "services", "list"): _BOOTS,
    ("metalman", "kube-system", "services", "watch"): _BOOTS,
    ("metalman", "unbounded-kube", "configmaps", "list"): _BOOTS,
    ("metalman", "unbounded-kube", "configmaps", "watch"): _BOOTS,
    (
        "metalman",
        "unbounded-kube",
        "configmaps",
        "get",
    ): "tests/metalman/netboot/test_request_handler.py: user-data",
    ("metalman", "unbounded-kube", "secrets", "create"): "tests/cli/test_rights.py: its own key",
    (
        "metalman",
        "unbounded-kube",
        "secrets",
        "delete",
    ): "tests/metalman/test_console_recording.py: kept console output",
    ("metalman", "", "certificatesigningrequests", "get"): _CONSOLES,
    ("metalman", "", "subjectaccessreviews", "create"): _CONSOLES,
}


def given(components: Collection[str] = COMPONENTS) -> Iterator[Right]:
    """Yield the rights in the roles of the components."""
    bodies = list(manifests())
    roles = {(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]): body for body in bodies}
    for binding in bodies:
        for subject in binding.get("subjects", ()) if binding["kind"].endswith("Binding") else ():
            if subject["kind"] != "ServiceAccount" or subject["name"] not in components:
                continue
            namespace, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
            for rule in roles[ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]]["rules"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        for verb in rule["verbs"]:
                            watched = "watch" in rule["verbs"]
                            yield Right(subject["name"], namespace, resource, name, verb, watched)


def uses(right: Right, component: str, asked: AuthAttributes) -> bool:
    """Return whether this right was used for this request."""
    resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    verbs = READING if right.verb in READING and right.watched else {right.verb}
    return (
        (right.component, right.resource) == (component, resource)
        and asked.verb in verbs
        and (not right.namespace or right.namespace == asked.namespace)
        and (not right.name or right.name == asked.name or f"metadata.name={right.name}" in asked.selector)
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, AuthAttributes]]:
    """The allowed requests of the components."""
    found: list[tuple[str, AuthAttributes]] = []
    decide = AuthChain.decide

    def watched(guard: AuthChain, user: User, attributes: AuthAttributes) -> AuthDecision:
        decision = decide(guard, user, attributes)
        if decision.allowed and user.name.startswith(stories.ACCOUNT):
            found.append((user.name.removeprefix(stories.ACCOUNT), attributes))
        return decision

    monkeypatch.setattr(AuthChain, "decide", watched)
    return found


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with deployed(tmp_path) as (server, admin):
        yield server, admin


async def configurations(served: Served) -> None:
    """A configuration is made, changed and deleted; a Machine is bound to it meanwhile."""
    server, admin = served
    path = f"{stories.OURS}/machineconfigurations"

    def body(image: str) -> dict[str, Any]:
        template = {"agent": {"image": image}}
        spec = {"template": template, "revisionHistoryLimit": 0, "machineSelector": {"matchLabels": {"pool": "a"}}}
        meta = {"name": "workers"}
        return {
            "apiVersion": "unbounded-cloud.io/v1alpha3",
            "kind": "MachineConfiguration",
            "metadata": meta,
            "spec": spec,
        }

    async def made_from(**images: str) -> bool:
        """The image of each version that there is."""
        items = (await admin.get(f"{stories.OURS}/machineconfigurationversions"))["items"]
        return {f"v{one['spec']['version']}": one["spec"]["template"]["agent"]["image"] for one in items} == images

    async with stories.controllers(server):
        await admin.create(path, body("a"))
        await eventually(lambda: made_from(v1="a"), within_s=60)
        await admin.merge(f"{path}/workers", {"spec": body("b")["spec"]})  # no node was made from it: it is edited
        await eventually(lambda: made_from(v1="b"), within_s=60)
        deployed = {"status": {"deployed": True}}
        await admin.merge(f"{stories.OURS}/machineconfigurationversions/workers-v1/status", deployed)
        await admin.merge(f"{path}/workers", {"spec": body("c")["spec"]})
        await eventually(lambda: made_from(v2="c"), within_s=60)  # and the first one is not kept


def test_what_is_used_elsewhere_is_used_by_tests_that_there_are() -> None:
    named = [where.partition(":")[0] for where in ELSEWHERE.values() if where.startswith("tests/")]
    assert [path for path in named if not (ROOT / "packages/unbounded" / path).exists()] == []
    rights = {(right.component, right.namespace, right.resource, right.verb) for right in given()}
    assert ELSEWHERE.keys() - rights == set()


@pytest.mark.soak
async def test_every_right_is_used(
    served: Served, asked: list[tuple[str, AuthAttributes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    await stories.test_the_controllers_need_no_more_than_their_rights(served, [])
    async with deployed(tmp_path_factory.mktemp("drains")) as another:  # both stories are about the same Machine
        await stories.test_a_drained_reboot_needs_no_more_than_the_rights_of_machina(another, [])
    await stories.test_machina_sets_a_host_up_and_resets_it_with_its_rights(served, [])
    await configurations(served)
    unused = {
        (right.component, right.namespace, right.resource, right.verb): right
        for right in given()
        if not any(uses(right, component, attributes) for component, attributes in asked)
    }
    missing = {right: unused.get(right) for right in unused.keys() ^ ELSEWHERE.keys()}
    assert missing == {}, "used by no story and not named, or named and used"
