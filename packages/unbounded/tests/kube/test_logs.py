"""Logs are data, and secrets are not in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unbounded.kube.api import ResponseLost
from unbounded.kube.logs import HumanFormatter, JsonFormatter, Log, SecretStr


@pytest.fixture
def written() -> Iterator[Callable[[logging.Formatter], io.StringIO]]:
    """Attaches a stream with a formatter to the logger of these tests."""
    logger = logging.getLogger("test.logs")
    handlers: list[logging.Handler] = []

    def attach(formatter: logging.Formatter) -> io.StringIO:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        handlers.append(handler)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        return stream

    yield attach
    for handler in handlers:
        logger.removeHandler(handler)


Attach = Callable[[logging.Formatter], io.StringIO]


def test_fields_are_bound_and_added(written: Attach) -> None:
    stream = written(JsonFormatter())
    log = Log("test.logs").bind(machine="m1")
    log.bind(operation="o").info("power accepted", wanted="Off", attempt=2)
    log.debug("not shown")
    entry: dict[str, Any] = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "test.logs",
        "message": "power accepted",
        "machine": "m1",
        "operation": "o",
        "wanted": "Off",
        "attempt": 2,
    }


def test_a_field_takes_the_place_of_nothing_and_anything_can_be_one(written: Attach) -> None:
    stream = written(JsonFormatter())
    Log("test.logs").warning("odd %s", message="mine", thing={1, 2} and object, keys=("a", 1))
    entry = json.loads(stream.getvalue())
    assert (entry["message"], entry["field_message"], entry["keys"]) == ("odd %s", "mine", ["a", 1])
    assert "class" in entry["thing"]


def test_error_is_logged_with_its_causes(written: Attach) -> None:
    stream = written(HumanFormatter())
    try:
        try:
            raise ConnectionResetError("reset by peer")
        except ConnectionResetError as cause:
            raise ResponseLost("patch: no answer") from cause
    except ResponseLost as error:
        Log("test.logs").warning("reconcile failed", error, key="a b")
    line = stream.getvalue()
    assert "WARNING reconcile failed  key='a b'" in line
    assert "ResponseLost: patch: no answer ← ConnectionResetError: reset by peer" in line


def test_bug_is_logged_with_its_traceback(written: Attach) -> None:
    stream = written(JsonFormatter())
    try:
        raise KeyError("x")
    except KeyError:
        Log("test.logs").exception("broke")
    assert "KeyError: 'x'" in json.loads(stream.getvalue())["traceback"]


@pytest.mark.parametrize("formatter", [JsonFormatter(), HumanFormatter()])
def test_a_secret_does_not_show_itself(written: Attach, formatter: logging.Formatter) -> None:
    stream = written(formatter)
    secret = SecretStr("hunter2")
    Log("test.logs").info(f"login {secret} {secret!r:>5}", password=secret, nested={"p": secret}, listed=[secret])
    assert "hunter2" not in stream.getvalue()
    assert "SecretStr(…)" in stream.getvalue()
    assert secret.reveal() == "hunter2"
    assert (secret == SecretStr("hunter2"), secret == SecretStr("x"), bool(SecretStr(""))) == (True, False, False)


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_text_of_others_sends_nothing_to_a_terminal_and_forges_no_line(
    written: Attach, formatter: logging.Formatter
) -> None:
    hostile = "\x1b[2J\x9b2J\x07\r\nERROR\u2028all is lost\u202e\u200b\U000e0041\x7f ä"
    stream = written(formatter)
    Log("test.logs").info("log-in refused", user=hostile, both=(hostile,))
    Log("test.logs").info("half", user="\ud800")
    logging.getLogger("test.logs").info("library: %s", "\x1b[2J\u202e")
    try:
        raise ValueError(hostile.replace("\n", ""))
    except ValueError:
        Log("test.logs").exception("bug")
    text = stream.getvalue()
    assert [one for one in text if not one.isprintable() and one != "\n"] == []
    first = text.split("\n")[0]
    assert ("log-in refused" in first, first.count("all is lost")) == (True, 2)
    assert "\\ud800" in text.split("\n")[1]
    if isinstance(formatter, JsonFormatter):
        first = json.loads(first)
        assert (first["user"], first["both"]) == (hostile, [hostile])
