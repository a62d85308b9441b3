"""Target cluster of a command, and its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbounded.cli.plugin.command import MANAGER, CliError, CliInvocation
from unbounded.kube.config import ClientConfig, ConfigError, find_config
from unbounded.kube.credentials import Impersonation

if TYPE_CHECKING:
    from unbounded.kube.client import HttpApi


def config_of(invocation: CliInvocation) -> ClientConfig:
    """Return the configuration that --kubeconfig, --context and --as select, found as kubectl finds it.

    Raises:
        CliError: there is none, or it cannot be used.
    """
    args = invocation.args
    other = Impersonation(args.as_user, args.as_uid, tuple(args.as_groups))
    try:
        return find_config(invocation.environ, kubeconfig=args.kubeconfig, context=args.context, acting_as=other)
    except ConfigError as error:
        raise CliError(str(error), next_step=_next(invocation)) from error


def _next(invocation: CliInvocation) -> str:
    if invocation.args.context:
        return "`kubectl config get-contexts` lists the values of --context"
    return "name a kubeconfig with --kubeconfig or $KUBECONFIG; `unbounded up` starts a cluster here and writes one"


def open_api(invocation: CliInvocation) -> HttpApi:
    """Return the API, not connected yet: an async context manager."""
    config = config_of(invocation)  # before the client is imported, so that a wrong --context fails at once
    from unbounded.kube.client import HttpApi  # noqa: PLC0415

    return HttpApi(config, user_agent=MANAGER)
