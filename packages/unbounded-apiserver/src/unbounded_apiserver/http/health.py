"""The answers of /healthz, /livez and /readyz, check by check, as those of kube-apiserver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from unbounded_apiserver.http.call import ApiCall
from unbounded_apiserver.http.reply import HttpReply

Check = Callable[[], str | None]
TEXT: Final = "text/plain; charset=utf-8"


def handlers(storage: Check) -> dict[str, Callable[[ApiCall], HttpReply]]:
    """Return the handlers by path.

    Args:
        storage: returns None while writes can be stored, else the reason. Restarting such a server does not help, so
            that /livez leaves this check out.
    """
    alive: dict[str, Check] = {"ping": lambda: None}
    ready = {**alive, "storage": storage}
    found: dict[str, Callable[[ApiCall], HttpReply]] = {}
    for name, checks in (("healthz", ready), ("livez", alive), ("readyz", ready)):
        found[f"/{name}"] = partial(_all, name, checks)
        found.update({f"/{name}/{one}": partial(_one, check) for one, check in checks.items()})
    return found


def _all(name: str, checks: Mapping[str, Check], call: ApiCall) -> HttpReply:
    """Answer with the state of all checks.

    Reasons are withheld, as anonymous clients may read them; authorized users read a check's reason at its own path.
    """
    excluded = set(call.query.get("exclude", ()))
    failed = False
    lines = []
    for one, check in checks.items():
        if one in excluded:
            lines.append(f"[+]{one} excluded: ok")
        elif check() is None:
            lines.append(f"[+]{one} ok")
        else:
            failed = True
            lines.append(f"[-]{one} failed: reason withheld")
    if unknown := sorted(excluded - checks.keys()):
        quoted = ",".join(f'"{one}"' for one in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if failed:
        return call.answer("\n".join([*lines, f"{name} check failed", ""]).encode(), 500, TEXT)
    if "verbose" in call.query:
        return call.answer("\n".join([*lines, f"{name} check passed", ""]).encode(), media=TEXT)
    return call.answer(b"ok", media=TEXT)


def _one(check: Check, call: ApiCall) -> HttpReply:
    why = check()
    if why is None:
        return call.answer(b"ok", media=TEXT)
    return call.answer(f"internal server error: {why}\n".encode(), 500, TEXT)
