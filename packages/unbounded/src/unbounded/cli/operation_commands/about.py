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
ZSH: Final = """\
#compdef unbounded
_unbounded() {
    local line about
    local -a lines found
    lines=("${(@f)$(kubectl_complete-unbounded "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[1,-2]}"; do
        about=
        [[ $line = *$'\t'* ]] && about=":${line#*$'\t'}"
        found+=("${${line%%$'\t'*}//:/\\:}$about")
    done
    _describe -t words word found && return
    [[ ${lines[-1]} = :0 ]] && _files
}
if [[ ${funcstack[1]} = _unbounded ]]; then _unbounded; else compdef _unbounded unbounded; fi
"""
FISH: Final = """\
function __unbounded_complete
    set -l before (commandline -opc)
    set -l last (commandline -ct)
    set -e before[1]
    set -l lines (kubectl_complete-unbounded $before "$last" 2>/dev/null)
    test (count $lines) -gt 0; or return
    if test $lines[-1] = :0
        __fish_complete_path "$last"
    end
    set -e lines[-1]
    printf '%s\\n' $lines
end
complete -c unbounded -f -a '(__unbounded_complete)'
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


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
    session.invocation.out.write(SCRIPTS[session.invocation.args.shell])
    return DONE
