"""A process ends at a signal, also when a part of it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from unbounded.kube.process import FORCED_EXIT_STATUS

STANDSTILL = """
import asyncio, time
from unbounded.kube.process import log_loop_stalls
from unbounded.kube.logs import configure

async def look():
    time.sleep(0.6)

async def main():
    log_loop_stalls(asyncio.get_running_loop(), 0.2)
    await asyncio.sleep(0.3)
    await look()
    await asyncio.sleep(0.3)

configure(json=True, level="warning")
asyncio.run(main())
"""

SCRIPT = """
import asyncio, threading, time
from unbounded.kube.logs import configure
from unbounded.kube.process import until_signal

async def swallows():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def blocks():
    try:
        await asyncio.sleep(60)
    finally:
        time.sleep(60)

async def in_a_thread():
    threading.Thread(target=time.sleep, args=(60,), name="cloud").start()
    await asyncio.sleep(60)

async def ends():
    await asyncio.sleep(60)

async def main():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task({how}(), name="look at m1")
        await asyncio.sleep(0.05)
        print("runs", flush=True)

configure(json=True, level="error")
raise SystemExit(asyncio.run(until_signal(main(), ends_within_s={limit_s})))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "named"),
    [
        ("ends", 0, {}),
        ("swallows", FORCED_EXIT_STATUS, {"task": "look at m1", "at": "<string>:9 swallows"}),
        ("blocks", FORCED_EXIT_STATUS, {"task": "look at m1", "at": "<string>:17 blocks"}),
        ("in_a_thread", FORCED_EXIT_STATUS, {"thread": "cloud"}),
    ],
)
def test_what_does_not_end_is_named_and_cut_off(how: str, status: int, named: dict[str, str]) -> None:
    limit_s = "1.0" if named else "60.0"  # the end of one that ends takes as long as this machine is busy
    code = SCRIPT.replace("{how}", how).replace("{limit_s}", limit_s)
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    said = [json.loads(line) for line in errors.splitlines()]
    assert any(named.items() <= one.items() for one in said) or not named, said
    assert bool(said) is bool(named)


@pytest.mark.slow
def test_what_keeps_a_loop_from_turning_is_named_once() -> None:
    script = (sys.executable, "-c", STANDSTILL)
    errors = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stderr
    said = [json.loads(line) for line in errors.splitlines()]
    assert [one["at"] for one in said if one["at"].startswith("<string>")] == ["<string>:7 look"], said
