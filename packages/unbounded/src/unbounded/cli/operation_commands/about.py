"""`version` and `completion`."""

from __future__ import annotations

import json
from importlib.metadata import version as version_of
from typing import Final

from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.output import as_yaml
from unbounded.cli.plugin.target import open_api

BASH: Final = """\
_unbounded() {
    local lines word
    mapfile -t lines < <(kubectl_complete-unbounded "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=()
    [ "${#lines[@]}" -gt 0 ] || return
    if [ "${lines[-1]}" = ":0" ]; then compopt -o default; fi
    unset 'lines[-1]'
    for word in "${lines[@]}"; do COMPREPLY+=("${word%%$'\\t'*}"); done
}
complete -F _unbounded unbounded
"""


async def version(session: CommandSession) -> int:
    """Print this program's version and, where a cluster is configured, that of its Kubernetes."""
    versions = {"unbounded": version_of("unbounded")}
    status = await _print_versions(session, versions)
    match getattr(session.invocation.args, "output", ""):
        case "json":
            session.invocation.out.write(json.dumps(versions, indent=4) + "\n")
        case "yaml":
            session.invocation.out.write(as_yaml(versions))
    return status


async def _print_versions(session: CommandSession, versions: dict[str, str]) -> int:
    """Print the versions as text, and collect them for JSON and YAML."""
    session.printer.info(f"unbounded {versions['unbounded']}")
    if session.invocation.args.client:
        return DONE
    try:
        api = open_api(session.invocation)
    except CliError as error:  # no cluster is configured, which is fine unless a flag named one
        if session.invocation.args.kubeconfig or session.invocation.args.context:
            raise
        session.printer.warn(str(error))
        return DONE
    async with api:
        versions |= {"kubernetes": await api.version(), "server": api.config.server}
        session.printer.info(f"kubernetes {versions['kubernetes']} at {versions['server']}")
    return DONE


async def completion(session: CommandSession) -> int:
    session.invocation.out.write(BASH)
    return DONE
