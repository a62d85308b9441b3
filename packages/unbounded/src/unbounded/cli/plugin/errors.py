"""Messages of errors with the next step: one table for all commands."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final, TextIO

from unbounded.api.container_cloud import names as container_cloud
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES
from unbounded.api.names import GROUP
from unbounded.cli import terminal_text
from unbounded.cli.plugin.command import FAILED, USAGE, CliError, CliInvocation
from unbounded.cli.terminal_text import PLAIN, RED, Style
from unbounded.intents.rejections import IntentRejected
from unbounded.kube import api
from unbounded.kube.config import ConfigError

AGAIN: Final = "nothing was changed; run the command again"
PERHAPS: Final = "the change may have had its effect: check before you run the command again"


@dataclass(frozen=True)
class ErrorMessage:
    text: str
    next_step: str = ""
    status: int = FAILED


def message_of(error: Exception, invocation: CliInvocation) -> ErrorMessage | None:
    """Return the message of an error; None for a bug."""
    match error:
        case CliError():
            return ErrorMessage(str(error), error.next_step, error.status)
        case ConfigError():
            return ErrorMessage(str(error), "name a kubeconfig with --kubeconfig or $KUBECONFIG")
        case api.KindNotServed():
            flag = " --container-cloud" if error.kind.group in container_cloud.GROUPS else ""
            installs = f"`{invocation.program} install{flag}` installs the kind"
            return ErrorMessage(str(error), f"{installs}; or is this the wrong cluster? See --context")
        case api.ApiError():
            return ErrorMessage(*_of_api(error, invocation))
        case IntentRejected():
            return ErrorMessage(str(error), error.next_step, USAGE if error.is_usage else FAILED)
        case Failure():
            return ErrorMessage(str(error))
        case _:
            return None


def _of_api(error: api.ApiError, invocation: CliInvocation) -> tuple[str, str]:
    match error:
        case api.NotFound() if api.is_kind_missing(error):
            kinds = f"the server does not serve {GROUP}: its CustomResourceDefinitions are not installed"
            return (
                kinds,
                f"`{invocation.program} install` installs them; or is this the wrong cluster? See --context",
            )
        case api.NotFound():
            return str(error), _list_hint(error)
        case api.AlreadyExists():
            return str(error), "choose another name, or delete that one first"
        case api.Conflict():
            return f"{error}", "another client changed it at the same moment; run the command again"
        case api.Forbidden() if error.code == 401 or error.reason == "Unauthorized":
            return f"the server rejected the login: {error}", "the kubeconfig's token or certificate may have expired"
        case api.Forbidden():
            return f"no permission: {error}", "`kubectl auth can-i --list` shows what this user may do"
        case api.InvalidObject():
            return str(error), ""
        case api.ServerBusy():
            return f"the server is busy: {error}", AGAIN
        case api.ServerUnreachable():
            return f"cannot reach the API server: {error}", _reach_hint(str(error))
        case api.ReadFailed():
            return str(error), AGAIN
        case api.ResponseLost() | api.ServerError():
            return str(error), PERHAPS
        case _:
            return str(error), ""


def _list_hint(error: api.ApiError) -> str:
    details = error.status.get("details") or {}
    group, kind = details.get("group", ""), details.get("kind", "")
    # a plural alone may mean the kind of another group
    shown = "mach" if (group, kind) == (MACHINES.group, MACHINES.plural) else f"{kind}.{group}" if group else kind
    return f"`kubectl get {shown}` lists the existing ones" if kind else ""


def _reach_hint(text: str) -> str:
    if "certificate has expired" in text:
        return "its certificate has expired: renew it, or correct the clock of this machine"
    if "certificate verify failed" in text or "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not the one that the kubeconfig trusts: is this the right cluster? See --context"
    return "is it running, and is this the right cluster? `kubectl config view --minify` shows the address"


def print_error(error: ErrorMessage, to: TextIO, style: Style = PLAIN) -> int:
    """Print an error; returns the exit status."""
    print(f"{style.paint('error:', RED)} {terminal_text.lines(error.text)}", file=to)
    if error.next_step:
        print(textwrap.indent(terminal_text.lines(error.next_step), "  "), file=to)
    return error.status
