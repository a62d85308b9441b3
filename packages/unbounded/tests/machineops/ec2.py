"""A provider for EC2, written from the documentation of the port and of EC2's API; `Front` is between it and moto.

The oracle is moto, an EC2 that others wrote, with the SDK of today (boto3) in front of it. What moto leaves out of what
EC2 documents is in `Front`: a ClientToken launches once, lists lag behind, answers are lost.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import boto3
from botocore.exceptions import ClientError

from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    Action,
    AuthMode,
    Budget,
    Handle,
    Instance,
    Job,
    Keep,
    Login,
    Loss,
    Next,
    OperationKind,
    Power,
    Progress,
    Rate,
    Rates,
    Record,
    Refusal,
    ReplaceStep,
    State,
    Throttled,
    Transient,
    Uncertain,
    said,
)

REGION: Final = "eu-west-1"
WHERE: Final = f"EC2 {REGION} DescribeInstances"
OPERATION: Final = "unbounded-operation"
REPLACES: Final = "unbounded-replaces"
POWERS: Final = {
    "running": Power.RUNNING,
    "stopped": Power.STOPPED,
    "terminated": Power.GONE,
}
STEPS: Final = (
    ReplaceStep("StoppingOld", "StopOld", "the old instance to be stopped", "the old instance is stopped", 600),
    ReplaceStep("Launching", "Launch", "the new instance to run", "the new one runs", 900, needs_user_data=True),
    ReplaceStep("HandingOver", "HandOver", "the Machine to name it", "the Machine names it", 300, hands_over=True),
    ReplaceStep("TerminatingOld", "TerminateOld", "the old instance to be gone", "the old one is gone", 900),
)


@dataclass
class Front:
    """A layer between a provider and moto.

    Args:
        tokens: of launches, as EC2 documents them: the same token gives the same instance, other parameters an error.
        trouble: of the next calls; `lost` loses the answers of changes, `deaf` does nothing.
        before: the instances that lists show in their former state.
        hidden: whether lists show nothing but those.
    """

    client: Any
    tokens: dict[str, tuple[dict[str, Any], Any]] = field(default_factory=dict)
    trouble: str = ""
    boots: dict[str, int] = field(default_factory=dict)
    before: dict[str, Any] | None = None
    hidden: bool = False

    def call(self, name: str, **given: Any) -> Any:
        if self.trouble in ("RequestLimitExceeded", "InternalError"):
            code = 503 if self.trouble == "RequestLimitExceeded" else 500
            answer = {"Error": {"Code": self.trouble, "Message": "try later"}}
            raise ClientError({**answer, "ResponseMetadata": {"HTTPStatusCode": code}}, name)
        changes = not name.startswith("describe")
        if name == "reboot_instances" and self.trouble == "deaf":
            return {}
        answer = self._launch(given) if name == "run_instances" else getattr(self.client, name)(**given)
        self._count(name, given, answer)
        if changes and self.trouble == "lost":
            raise ConnectionError(f"{name}: connection reset")
        return self._shown(answer) if name == "describe_instances" and "InstanceIds" not in given else answer

    def _launch(self, given: dict[str, Any]) -> Any:
        token = given.get("ClientToken")
        if token is None:
            return self.client.run_instances(**given)
        if token not in self.tokens:
            self.tokens[token] = (given, self.client.run_instances(**given))
        first, answer = self.tokens[token]
        if first != given:
            raise ClientError({"Error": {"Code": "IdempotentParameterMismatch", "Message": token}}, "RunInstances")
        return answer

    def _count(self, name: str, given: Mapping[str, Any], answer: Any) -> None:
        """moto has no record of boots; EC2 shows none either."""
        if name in ("reboot_instances", "start_instances"):
            before = {each["InstanceId"]: each["PreviousState"]["Name"] for each in answer.get("StartingInstances", ())}
            for each in given["InstanceIds"]:
                self.boots[each] = self.boots.get(each, 0) + (before.get(each) != "running")

    def _shown(self, answer: Any) -> Any:
        """A list, as far as it is up to date."""
        if self.before is None:
            return answer
        there = [each for one in answer["Reservations"] for each in one["Instances"]]
        if self.hidden:
            there = [each for each in there if each["InstanceId"] in self.before]
        else:
            there = [self.before.get(each["InstanceId"], each) for each in there]
        return {"Reservations": [{"Instances": there}]}


@dataclass
class EC2:
    """
    Args:
        session: what speaks to the cloud.
    """

    front: Front
    session: type[EC2Session] = field(default_factory=lambda: EC2Session)
    name: ClassVar[str] = "EC2"
    api_version: ClassVar[str] = "v1"
    kinds: ClassVar[frozenset[OperationKind]] = frozenset(kind for kind in OperationKind if kind.is_host)
    modes: ClassVar[frozenset[AuthMode]] = frozenset(AuthMode)
    secret_keys: ClassVar[tuple[str, ...]] = ()
    rates: ClassVar[Rates] = Rates(reads=Rate(100, 20), writes=Rate(50, 5))
    call_limit_s: ClassVar[float] = 30.0
    most_user_data: ClassVar[int] = 16_384
    restarts_once: ClassVar[bool] = False
    parameters: ClassVar[Mapping[OperationKind, frozenset[str]]] = {}
    replacement: ClassVar[tuple[ReplaceStep, ...]] = STEPS

    def instance(self, provider_id: str) -> Instance:
        scheme, _, rest = provider_id.partition(":///")
        region, _, ident = rest.partition("/")
        if scheme != "aws" or region != REGION or not ident.startswith("i-") or not ident[2:].isalnum():
            raise ValueError(f"{provider_id!r} is not aws:///{REGION}/i-…")
        if ident != ident.lower():
            raise ValueError(f"{provider_id!r} is not in small letters")
        return Instance(ident, REGION, ident)

    def connect(self, login: Login, budget: Budget) -> EC2Session:
        return self.session(self.front, budget)


class EC2Session:
    def __init__(self, front: Front, budget: Budget) -> None:
        self._front = front
        self._budget = budget

    async def look(self, instance: Instance) -> Record:
        try:
            shown = await self._read(InstanceIds=[instance.id])
        except Refusal as refusal:
            if refusal.reason != reasons.INSTANCE_NOT_FOUND:
                raise
            return Record(Power.GONE, str(refusal), WHERE)
        return Record(_power(shown[0]), f"{instance.name} is {shown[0]['State']['Name']}", WHERE)

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        """RebootInstances is only a request, of which nothing is shown: the state is "running" all along."""
        name = {Action.RESTART: "reboot_instances", Action.POWER_ON: "start_instances"}.get(action, "stop_instances")
        await self._write(name, before, InstanceIds=[job.instance.id])
        return Handle("requested") if action is Action.RESTART else None

    async def follow(self, job: Job, handle: str) -> Progress:
        return Progress(State.ACCEPTED, "RebootInstances was accepted; EC2 shows no more of it", f"EC2 {REGION}")

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        """Find the new instance by its tag. If a list does not show it yet, its launch is requested again, and
        ClientToken gives

        the same one.
        """
        every = await self._read()
        mine = [each for each in every if _tag(each, OPERATION) == job.uid and _power(each) is not Power.GONE]
        old_id = _tag(mine[0], REPLACES) if mine else job.instance.id
        old = next((each for each in every if each["InstanceId"] == old_id), None)
        is_old_there = old is not None and _power(old) is not Power.GONE
        detail = f"{old_id} is {old['State']['Name'] if old else 'not there'}"
        if not mine:
            if old is None or not is_old_there:
                raise Refusal(reasons.INSTANCE_NOT_FOUND, detail)
            _check_earlier(every, old)
            step = "Launching" if _power(old) is Power.STOPPED else "StoppingOld"
            return Next(step, detail, WHERE, losses=tuple(await self._losses(old)))
        new = mine[0]
        detail = f"{detail}; {new['InstanceId']} is {new['State']['Name']}"
        if _power(new) is not Power.RUNNING:
            return Next("Launching", detail, WHERE, under_way=True)
        if job.instance.id != new["InstanceId"]:
            return Next("HandingOver", detail, WHERE, new_instance=f"aws:///{REGION}/{new['InstanceId']}")
        return Next("TerminatingOld" if is_old_there else None, detail, WHERE)

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        match step:
            case "StoppingOld":
                await self._write("stop_instances", before, InstanceIds=[job.instance.id])
            case "Launching":
                await self._launch(job, keep, user_data, before)
            case "TerminatingOld":
                old_id = _tag((await self._read(InstanceIds=[job.instance.id]))[0], REPLACES)
                await self._write("terminate_instances", before, InstanceIds=[old_id])

    async def _launch(self, job: Job, keep: Keep, user_data: str, before: float) -> None:
        """Launch with the stored user data, as all requests with one token have to be equal."""
        if await keep.load() is None:
            await keep.store(user_data.encode())
        kept = (await keep.load() or b"").decode()
        old = (await self._read(InstanceIds=[job.instance.id]))[0]
        tags = [{"Key": OPERATION, "Value": job.uid}, {"Key": REPLACES, "Value": job.instance.id}]
        await self._write(
            "run_instances",
            before,
            **self.token(job),
            ImageId=old["ImageId"],
            InstanceType=old["InstanceType"],
            MinCount=1,
            MaxCount=1,
            UserData=kept,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )

    def token(self, job: Job) -> dict[str, str]:
        return {"ClientToken": job.uid}

    async def _losses(self, old: Mapping[str, Any]) -> list[Loss]:
        """A launch by image and type has another address, no content of an instance store, and no further volumes."""
        found = []
        if address := old.get("PublicIpAddress"):
            found.append(Loss("networkInterface.association", f"public IP {address}"))
        await self._budget.read(REGION)
        (of_type,) = (await self._call("describe_instance_types", False, {"InstanceTypes": [old["InstanceType"]]}))[
            "InstanceTypes"
        ]
        if of_type["InstanceStorageSupported"]:
            size = of_type["InstanceStorageInfo"]["TotalSizeInGB"]
            found.append(Loss("instanceStorage", f"what is on its instance store, {size} GB of {old['InstanceType']}"))
        volumes = [each for each in old["BlockDeviceMappings"] if each["DeviceName"] != old["RootDeviceName"]]
        if volumes:
            names = ", ".join(f"{each['Ebs']['VolumeId']} at {each['DeviceName']}" for each in volumes)
            found.append(Loss("blockDeviceMapping", f"the attachments of volumes: {names}"))
        return found

    async def close(self) -> None:
        """There is nothing to end: the client is the process's."""

    async def _read(self, **given: Any) -> list[dict[str, Any]]:
        await self._budget.read(REGION)
        answer = await self._call("describe_instances", False, given)
        return [each for one in answer["Reservations"] for each in one["Instances"]]

    async def _write(self, name: str, before: float, **given: Any) -> None:
        await self._budget.write(REGION, before=before)
        await self._call(name, True, given)

    async def _call(self, name: str, changes: bool, given: dict[str, Any]) -> Any:
        try:
            return await asyncio.to_thread(self._front.call, name, **given)
        except ClientError as error:
            raise _failure(error, changes=changes) from error
        except ConnectionError as error:
            raise (Uncertain if changes else Transient)(str(error)) from error


def _failure(error: ClientError, *, changes: bool) -> Exception:
    code, words = error.response["Error"]["Code"], said(str(error))
    match code:
        case "RequestLimitExceeded":
            return Throttled(words, 5.0)
        case "InternalError":
            return (Uncertain if changes else Transient)(words)
        case "InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed":
            return Refusal(reasons.INSTANCE_NOT_FOUND, words)
        case "IdempotentParameterMismatch" | "IncorrectInstanceState":
            return Transient(words)
    return Refusal(reasons.PROVIDER_REFUSED, words)


def _check_earlier(every: list[dict[str, Any]], old: dict[str, Any]) -> None:
    for each in every:
        is_left = _tag(each, REPLACES) == old["InstanceId"] or each["InstanceId"] == _tag(old, REPLACES)
        if is_left and _power(each) is not Power.GONE:
            raise Refusal(reasons.PROVIDER_REFUSED, f"{each['InstanceId']} is left of an earlier replacement")


def _power(shown: Mapping[str, Any]) -> Power:
    return POWERS.get(shown["State"]["Name"], Power.CHANGING)


def _tag(shown: Mapping[str, Any], key: str) -> str:
    return next((each["Value"] for each in shown.get("Tags", ()) if each["Key"] == key), "")


@functools.cache  # it reads the whole description of the service
def _client() -> Any:
    return boto3.client("ec2", region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing")


@dataclass
class EC2Subject:
    """The instances of an account at moto, seen without the provider."""

    session: type[EC2Session] = EC2Session
    login: Login = field(default_factory=lambda: Login("ec2", AuthMode.WORKLOAD_IDENTITY))
    missing: str = f"aws:///{REGION}/i-0000000000000000f"
    anew: None = None  # moto is in this process

    def __post_init__(self) -> None:
        self.client = _client()
        self.front = Front(self.client)
        self.provider = EC2(self.front, self.session)
        self.image = self.client.register_image(Name="ubuntu-24.04", Architecture="x86_64")["ImageId"]

    async def make(self) -> str:
        answer = self.client.run_instances(ImageId=self.image, InstanceType="t3.micro", MinCount=1, MaxCount=1)
        return f"aws:///{REGION}/{answer['Instances'][0]['InstanceId']}"

    def _all(self) -> dict[str, Any]:
        pages = self.client.describe_instances()["Reservations"]
        return {f"aws:///{REGION}/{each['InstanceId']}": each for one in pages for each in one["Instances"]}

    async def instances(self) -> Mapping[str, Power]:
        return {name: _power(shown) for name, shown in self._all().items()}

    async def boots(self, provider_id: str) -> int:
        return 1 + self.front.boots.get(provider_id.rpartition("/")[2], 0)

    async def user_data(self, provider_id: str) -> str | None:
        ident = provider_id.rpartition("/")[2]
        held = self.client.describe_instance_attribute(InstanceId=ident, Attribute="userData")["UserData"].get("Value")
        return None if held is None else base64.b64decode(held).decode()
