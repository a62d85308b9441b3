"""kubectl, and what the tests of this folder write."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml

T = TypeVar("T")
KUBECTL: Final = shutil.which("kubectl")
CLUSTER: Final = os.environ.get("UNBOUNDED_TEST_KUBECONFIG", "")  # a cluster that may be written to
LIMIT_S: Final = 60.0
needs_kubectl: Final = [
    pytest.mark.slow,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]


def unique(prefix: str) -> str:
    """Return a unique name."""
    return f"{prefix}-{secrets.token_hex(4)}"


@dataclass
class Kubectl:
    """kubectl with a namespace of its own as the default."""

    home: Path
    config: dict[str, Any]
    namespace: str
    group: str  # of the definitions of Widget and Gadget
    cache: Path
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    def configure(self, name: str = "kubeconfig", *, user: dict[str, Any] | None = None) -> Path:
        """Write a kubeconfig whose namespace is ours, for another user when one is given."""
        config: dict[str, Any] = json.loads(json.dumps(self.config))
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        context["namespace"] = self.namespace
        if user is not None:
            config["users"].append({"name": "another", "user": user})
            context["user"] = "another"
        path = self.home / name
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.cache),
            **environment,
        }
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL), *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=env
        )
        self.started.append(process)
        return process

    async def both(self, *arguments: str, stdin: Any = None, code: int = 0, **environment: str) -> tuple[str, str]:
        """Standard output and error of a command that ends with this code."""
        process = await self.start(*arguments, **environment)
        text = stdin if isinstance(stdin, str) else json.dumps(stdin) if stdin is not None else ""
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(text.encode())
        said = f"kubectl {' '.join(arguments)}: {process.returncode}\n{out.decode()}{err.decode()}"
        assert process.returncode == code, said
        return out.decode(), err.decode()

    async def __call__(self, *arguments: str, stdin: Any = None, **environment: str) -> str:
        """Run a command that succeeds, and return its output."""
        return (await self.both(*arguments, stdin=stdin, code=0, **environment))[0]

    async def fails(self, *arguments: str, stdin: Any = None, code: int = 1, **environment: str) -> str:
        """Run a command that fails, and return its error."""
        return (await self.both(*arguments, stdin=stdin, code=code, **environment))[1]

    async def apply(self, *objects: dict[str, Any]) -> str:
        return await self("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    async def json(self, *arguments: str) -> Any:
        """The object or list that `kubectl get` shows."""
        return json.loads(await self("get", *arguments, "-o", "json"))

    async def ended(self, process: asyncio.subprocess.Process) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await process.wait()

    def widget(self, name: str = "one", **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": f"{self.group}/v1",
            "kind": "Widget",
            "metadata": {"name": name},
            "spec": {"size": 3, **spec},
        }

    def editor(self, script: str) -> str:
        """An editor that runs a shell script on the file."""
        path = self.home / unique("editor")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)


async def line(process: asyncio.subprocess.Process) -> list[str]:
    """The next line that a process prints, as words."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().split()


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    meta = {"name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod(name: str, node: str = "", **meta: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "registry.invalid/none:1"}], "terminationGracePeriodSeconds": 0}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}
