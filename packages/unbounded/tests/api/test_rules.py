"""Credentials and configuration versions that the API refuses and accepts; and the examples, which it accepts."""

import copy

import pytest

from tests.api.checking import SCHEMAS, Object, assert_refused, made, refusals
from tests.api.test_examples import OURS, name_of


@pytest.mark.parametrize("manifest", OURS, ids=name_of)
def test_an_example_is_accepted_and_nothing_of_it_is_dropped(manifest: Object) -> None:
    written = copy.deepcopy(manifest)
    schema = SCHEMAS[manifest["kind"]]
    assert schema.prune(written) == []
    schema.default(written)
    assert schema.validate(written) == []


AZURE = "{siteName: remote, provider: AzureVM, auth: {mode: WorkloadIdentity}}"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"auth__mode": "ExternalPlugin"}, "spec.auth", "ExternalPlugin needs secretRef"),
        ({"auth__mode": "Password"}, "spec.auth.mode", "supported values"),
        ({"siteName": ""}, "spec.siteName", "at least 1 char"),
        ({"provider": ""}, "spec.provider", "at least 1 char"),
        ({"provider": "lab/AzureVM"}, "spec.provider", "should match"),
        ({"auth__secretRef": {"name": "s", "namespace": ""}}, "spec.auth.secretRef.namespace", "at least 1 char"),
    ],
)
def test_a_credential_is_refused(changes: Object, field: str, words: str) -> None:
    kind = "MachineOperationCredential"
    assert refusals(kind, made(kind, AZURE)) == []
    messages = [e.message for e in SCHEMAS[kind].validate(made(kind, AZURE, **changes)) if e.field == field]
    assert any(words in message for message in messages), messages


VERSION = "{version: 1, template: {agent: {image: a}}}"


def test_a_version_can_be_edited_until_it_is_deployed() -> None:
    kind = "MachineConfigurationVersion"
    edited: Object = {"template__agent__image": "b"}
    assert refusals(kind, made(kind, VERSION, **edited), made(kind, VERSION)) == []
    deployed = {"deployed": True, "deployedMachines": 1}
    old, new = made(kind, VERSION, status=deployed), made(kind, VERSION, status=deployed, **edited)
    assert_refused(kind, new, old, "spec", "a deployed version is immutable")
    assert refusals(kind, made(kind, VERSION, status={"deployed": True, "deployedMachines": 0}), old) == []


def test_a_version_keeps_its_number() -> None:
    kind = "MachineConfigurationVersion"
    assert_refused(kind, made(kind, VERSION, version=2), made(kind, VERSION), "spec.version", "immutable")
