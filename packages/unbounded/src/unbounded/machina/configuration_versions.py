"""Loop over MachineConfigurations: brings their versions to the state that `plan` decides, and writes their users."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.conditions import find_condition, set_condition
from unbounded.api.configuration import (
    CONDITION_IN_USE,
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    MachineConfiguration,
    MachineConfigurationVersion,
)
from unbounded.api.failures import Rejected, Stale, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import (
    ANNOTATION_ABOUT_TO_CHANGE,
    API_VERSION,
    LABEL_CONFIGURATION,
    LABEL_CONFIGURATION_VERSION,
)
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina import configuration_plan

Raw = dict[str, Any]

INDEX_CONFIGURATION: Final = "configuration"

CONFIGURATIONS: Final = MACHINE_CONFIGURATIONS.raw()  # raw, so that a template keeps all fields that the server knows
VERSIONS: Final = MACHINE_CONFIGURATION_VERSIONS.raw()

log = Log("configurations")


def by_configuration(version: Raw) -> tuple[str, ...]:
    """Return the MachineConfiguration in a version's label, as the key of an index."""
    name = (version["metadata"].get("labels") or {}).get(LABEL_CONFIGURATION)
    return (name,) if name else ()


class VersionController:
    """Controller of the versions of each configuration.

    Args:
        versions: indexed by INDEX_CONFIGURATION, with `by_configuration`.
        machines: indexed by INDEX_CONFIGURATION, with `configurations_of`.
    """

    def __init__(
        self,
        api: Api,
        configurations: Cache[Raw],
        versions: Cache[Raw],
        machines: Cache[Machine],
        *,
        now: WallClock = utc_now,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._configurations = configurations
        self._versions = versions
        self._machines = machines
        self._status = StatusWriter(
            api,
            CONFIGURATIONS,
            fields=("latestVersion", "currentVersion", "conditions"),
            cache=configurations,
        )
        self._version_status = StatusWriter(
            api, VERSIONS, fields=("deployed", "deployedMachines", "conditions"), cache=versions
        )
        self._now = now
        self._reserved: dict[str, int] = {}  # by the UID of the configuration
        self._controller: Controller[str] = Controller(
            "configuration versions", self._reconcile, workers=2, metrics=loop_metrics
        )
        follow = self._controller.follow
        follow(configurations, lambda configuration: (configuration["metadata"]["name"],))
        follow(versions, by_configuration)
        follow(machines, configuration_plan.configurations_of, parts=_relevant_parts)

    async def run(self) -> None:
        """Run until cancelled."""
        self._reserved.clear()
        await self._controller.run()

    async def _reconcile(self, name: str) -> float | None:
        raw = self._configurations.get(name)
        if raw is None:
            await self._withdraw_all(name)
            return None
        configuration = msgspec.convert(raw, MachineConfiguration)
        usage = configuration_plan.usage_of(name, self._machines.by(INDEX_CONFIGURATION, name))
        decided = configuration_plan.plan(self._observe(raw, configuration, usage))
        for action in decided.actions:
            if isinstance(action, configuration_plan.EditVersion | configuration_plan.DeleteVersion):
                await self._check_unused(name, action)
            await self._perform(action, raw, configuration)
        if decided.actions:
            return 0.0
        await self._write_numbers(raw, decided, usage.whole)
        return None

    async def _withdraw_all(self, configuration: str) -> None:
        """Withdraw the announcements of a deleted configuration's versions that remain: they cannot change any more."""
        for raw in self._versions.by(INDEX_CONFIGURATION, configuration):
            version = _version(raw, "")
            if version.announced and version.orphan and not version.deleting:
                await self._announce(version, None)

    def _observe(
        self, raw: Raw, configuration: MachineConfiguration, usage: configuration_plan.ConfigurationUsers
    ) -> configuration_plan.ConfigurationObservation:
        meta = configuration.metadata
        return configuration_plan.ConfigurationObservation(
            name=meta.name,
            template=raw["spec"]["template"],
            limit=configuration.spec.revision_history_limit,
            latest=configuration.status.latest_version or 0,
            versions=tuple(_version(one, meta.uid) for one in self._versions.by(INDEX_CONFIGURATION, meta.name)),
            usage=usage,
            reserved=self._reserved.get(meta.uid, 0),
            deleting=meta.deletion_timestamp is not None,
        )

    async def _check_unused(
        self, configuration: str, action: configuration_plan.EditVersion | configuration_plan.DeleteVersion
    ) -> None:
        """Check with a live read that no Machine locked a version before its announcement: edits cannot be undone."""
        machines = (await self._api.list(MACHINES)).items
        use = configuration_plan.usage_of(configuration, machines).versions.get(
            action.version.number, configuration_plan.VersionUsers()
        )
        if use.made or (use.named and isinstance(action, configuration_plan.DeleteVersion)):
            for machine in machines:
                self._machines.observe(machine)
            raise Stale(f"a Machine has started to use version {action.version.name}")

    async def _perform(self, action: configuration_plan.Action, raw: Raw, configuration: MachineConfiguration) -> None:
        match action:
            case configuration_plan.WriteUsers(version=version):
                await self._write_users(version, action)
            case configuration_plan.AdoptVersion(version=version):
                await self._patch(version, {"metadata": {"ownerReferences": [_owner(configuration)]}})
            case configuration_plan.ReserveNumber(number=number):
                await self._status.write(raw, {"latestVersion": number})
                self._reserved[configuration.metadata.uid] = number
            case configuration_plan.CreateVersion(number=number, template=template):
                await self._create(configuration, number, dict(template))
            case configuration_plan.AnnounceChange(version=version):
                await self._announce(version, "true")
            case configuration_plan.WithdrawChange(version=version):
                await self._announce(version, None)
            case configuration_plan.EditVersion(version=version, template=template):
                await self._replace(version, dict(template))
            case configuration_plan.DeleteVersion(version=version):
                await self._delete(version)

    async def _write_users(
        self, version: configuration_plan.ObservedVersion, note: configuration_plan.WriteUsers
    ) -> None:
        raw = self._known(version)
        status = {"deployed": note.deployed, "deployedMachines": len(note.use.made)}
        conditions = self._conditions(raw, note.use)
        written = status if conditions is None else {**status, "conditions": conditions}
        await self._version_status.write(raw, written)

    async def _create(self, configuration: MachineConfiguration, number: int, template: Raw) -> None:
        meta = configuration.metadata
        labels = {LABEL_CONFIGURATION: meta.name, LABEL_CONFIGURATION_VERSION: str(number)}
        body = {
            "metadata": {
                "name": configuration_plan.name_of(meta.name, number),
                "labels": labels,
                "ownerReferences": [_owner(configuration)],
            },
            "spec": {"version": number, "template": template},
        }
        # one attempt: after it, the number is not reused, even if the attempt failed
        self._reserved.pop(meta.uid, None)
        try:
            made = await self._api.create(VERSIONS, body)
        except Transient:
            self._reserved[meta.uid] = number  # the version was not created, and no client has read the number
            raise
        except AlreadyExists as error:
            raise Rejected(f"another object has the name of version {number} of {meta.name}") from error
        self._versions.observe(made)
        log.info("version created", configuration=meta.name, version=number)

    async def _announce(self, version: configuration_plan.ObservedVersion, message: str | None) -> None:
        await self._patch(version, {"metadata": {"annotations": {ANNOTATION_ABOUT_TO_CHANGE: message}}})

    async def _replace(self, version: configuration_plan.ObservedVersion, template: Raw) -> None:
        """Replace the whole template: a merge patch would keep the fields that the new one lacks."""
        spec = {"template": _replacement_patch(dict(version.template), template)}
        await self._patch(version, {"metadata": {"annotations": {ANNOTATION_ABOUT_TO_CHANGE: None}}, "spec": spec})
        log.info("version edited", version=version.name)

    async def _delete(self, version: configuration_plan.ObservedVersion) -> None:
        meta = self._known(version)["metadata"]
        try:
            await self._api.delete(VERSIONS, version.name, uid=meta["uid"], resource_version=meta["resourceVersion"])
        except NotFound:
            return
        log.info("unused version deleted", version=version.name)

    def _known(self, version: configuration_plan.ObservedVersion) -> Raw:
        raw = self._versions.get(version.name)
        if raw is None:
            raise Stale(f"version {version.name} does not exist any more")
        return raw

    async def _patch(self, version: configuration_plan.ObservedVersion, patch: Raw) -> None:
        fixed = {"resourceVersion": self._known(version)["metadata"]["resourceVersion"]}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **fixed}}
        self._versions.observe(await self._api.patch(VERSIONS, version.name, body))

    async def _write_numbers(
        self, raw: Raw, decided: configuration_plan.VersionsPlan, use: configuration_plan.VersionUsers
    ) -> None:
        """Write the status of the configuration if it differs."""
        desired: Raw = {"latestVersion": decided.latest or None, "currentVersion": decided.current or None}
        status = raw.get("status") or {}
        changed = {key: value for key, value in desired.items() if status.get(key) != value}
        conditions = self._conditions(raw, use)
        if conditions is not None:
            changed["conditions"] = conditions
        await self._status.write(raw, changed)

    def _conditions(self, raw: Raw, use: configuration_plan.VersionUsers) -> list[Raw] | None:
        conditions = (raw.get("status") or {}).get("conditions") or []
        status, reason = ("True", "Used") if use else ("False", "Unused")
        return set_condition(conditions, CONDITION_IN_USE, status, reason, use.text, rfc3339(self._now()))


def _relevant_parts(machine: Machine) -> object:
    """Return the parts of a Machine that determine the use of configurations."""
    return machine.spec.configuration_ref, configuration_plan.node_versions(machine), machine.metadata.annotations


def _version(raw: Raw, owner_uid: str) -> configuration_plan.ObservedVersion:
    known = msgspec.convert(raw, MachineConfigurationVersion)
    used = find_condition((raw.get("status") or {}).get("conditions") or [], CONDITION_IN_USE)
    owners = [owner.uid for owner in known.metadata.owner_references]
    return configuration_plan.ObservedVersion(
        name=known.metadata.name,
        number=known.spec.version,
        template=raw["spec"]["template"],
        deployed=known.status.deployed,
        deployed_machines=known.status.deployed_machines,
        in_use=None if used is None else str(used.get("message", "")),
        own=owner_uid in owners,
        orphan=not owners,
        deleting=known.metadata.deletion_timestamp is not None,
        announced=known.about_to_change,
    )


def _owner(configuration: MachineConfiguration) -> Raw:
    return {
        "apiVersion": API_VERSION,
        "kind": MACHINE_CONFIGURATIONS.kind,
        "name": configuration.metadata.name,
        "uid": configuration.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _replacement_patch(old: Raw, new: Raw) -> Raw:
    """Return a merge patch that turns `old` into `new`, with null for removed keys."""
    removed: Raw = {key: None for key in old if key not in new}
    fields = {
        key: _replacement_patch(old[key], value)
        if isinstance(value, dict) and isinstance(old.get(key), dict)
        else value
        for key, value in new.items()
    }
    return {**removed, **fields}
