"""The rows of `why`, `tree`, `events`, `logs`, `ssh`, `console`, `support`, `plan`, `version` and `completion`."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_boolean, checked, limit, port, some_lines


def _add_namespace(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="Read an object of Container Cloud in this namespace (default: that of the context)",
    )


MACHINE: Final = "Name a Machine; of Container Cloud, machine.cluster.k8s.io/NAME (or ma/NAME) and bmh/NAME"


def _tree_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MACHINE", help=MACHINE)
    _add_namespace(parser)


def _events_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="MACHINE", help=f"{MACHINE} (default: all objects)")
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="Read an object of Container Cloud in this namespace (default: that of the context); without MACHINE, "
        "print the Events of this namespace alone (default: of all)",
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help="Then print each new or repeated Event, until Ctrl-C"
    )


def _logs_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MACHINE", help="Name the Machine")
    parser.add_argument(
        "--part",
        action="append",
        choices=("install", "agent", "console"),
        default=[],
        help="Print this log alone: the output of the install script, the journal of the agent, or the console of the "
        "last boot that failed. Repeatable",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="Then print what comes, until Ctrl-C: of an install, then the agent"
    )
    parser.add_argument(
        "--since",
        type=checked(limit),
        default=None,
        metavar="DURATION",
        help="Leave out lines of the journal that are older, and other logs that ended before, such as 10m",
    )
    parser.add_argument(
        "--tail",
        type=checked(some_lines),
        default=1000,
        metavar="LINES",
        help="Print the last lines of each log (default %(default)s)",
    )


def _ssh_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MACHINE", help="Name the Machine")
    parser.add_argument(
        "arguments",
        nargs="*",
        default=[],  # argparse takes it for a required one otherwise
        metavar="ARG",
        help="Pass options and a command to ssh; -- comes before the options",
    )


def _console_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=checked(port),
        default=0,
        help="Serve on this port of loopback (default: a free one, which is printed)",
    )
    parser.add_argument(
        "--allow-operations",
        action="store_true",
        help="Offer reboots, replacements, drains, pauses and cancels; without it, the console only reads",
    )


def _support_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="MACHINE", help=f"{MACHINE}, for all that is around it")
    parser.add_argument("--all", action="store_true", help="Collect all Machines in place of one")
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="Write this new file, which ends in .tar.zst or .tar.gz (default: unbounded-support-TIME.tar.zst here)",
    )
    add_boolean(parser, "--host-logs", default=True, help="Read the logs of hosts over SSH, with your own keys")
    add_boolean(
        parser,
        "--console",
        default=True,
        help="Read the console output of the last boot that failed, which a Secret of its own type holds",
    )
    _add_namespace(parser)


def _why_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="MACHINE|OPERATION",
        help="Name a Machine or an operation; use machine/NAME or operation/NAME where both exist, and "
        "configuration/NAME for a rolling update; of Container Cloud, machine.cluster.k8s.io/NAME (or ma/NAME), "
        "bmh/NAME, cluster.cluster.k8s.io/NAME and mp/NAME",
    )
    _add_namespace(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="Print it again at each change, until it has ended")
    parser.add_argument(
        "--url",
        default="",
        help="Let the API of explanations at this URL answer, with the login of the kubeconfig",
    )
    parser.add_argument(
        "--url-ca",
        default="",
        metavar="FILE",
        help="Trust the certificate authorities in this PEM file for --url (default: those of the kubeconfig for its "
        "server, else those of this machine)",
    )


def _plan_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        default="",
        metavar="FILE",
        help="Plan the objects of Container Cloud in a file (-: the standard input), in place of a command",
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="With -f: plan the deletion of the Machines, hosts, Clusters and MachinePools of the file",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="Use this namespace for objects of the file that name none (default: that of the context)",
    )
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND", help="Type the command as usual, with its flags")


def _version_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--client", action="store_true", help="Print only the version of this program, without a cluster"
    )


def _completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="Select the shell")


COMMANDS: Final = (
    CliCommand(
        path=("why",),
        help="Explain what blocks a Machine, a host or an operation, when the wait ends, and how to fix it",
        examples=(
            ("why web-01", "print what blocks the Machine web-01"),
            ("why operation/reboot-rack1", "print what the operation reboot-rack1 waits for"),
            ("why ma/web-01 -n shop", "print the chain from Container Cloud's Machine to the BMC of its host"),
            (
                "why machine/web-01 --url https://explain.example.com",
                "print the answer of a server, which may be one minor release older or newer",
            ),
            ("why web-01 --watch", "print it again at each change, until nothing blocks the Machine"),
        ),
        arguments=_why_arguments,
        run="unbounded.cli.explain:run",
    ),
    CliCommand(
        path=("tree",),
        help="Print a Machine with its Node, operations, host, configuration and disruption budgets",
        examples=(
            ("tree web-01", "print the Machine web-01, and the objects below it"),
            ("tree ma/web-01 -n shop", "print Container Cloud's Machine, its host, and the Machine of that"),
            ("tree web-01 -o json", "print the tree as JSON"),
        ),
        arguments=_tree_arguments,
        run="unbounded.cli.tree:run",
    ),
    CliCommand(
        path=("events",),
        help="Print the Events about a Machine and the objects around it, or about all of them",
        examples=(
            ("events web-01", "print the Events about web-01, its operations, host and Node, the last one at the end"),
            ("events web-01 -w", "print them, then each new one"),
            ("events", "print the Events about all Machines, operations, hosts and Nodes"),
        ),
        arguments=_events_arguments,
        run="unbounded.cli.events:run",
    ),
    CliCommand(
        path=("logs",),
        help="Print the logs of a Machine: of its install, its agent, and the console of a boot that failed",
        examples=(
            ("logs web-01", "print all three, each below the place that it comes from"),
            ("logs web-01 -f", "follow the install of web-01, and then its agent"),
            ("logs web-01 --part agent --since 10m", "print the journal of the agent of the last ten minutes"),
            ("logs web-01 -o json", "print the logs with their sources, and why one is missing, as JSON"),
        ),
        arguments=_logs_arguments,
        run="unbounded.cli.logs:run",
        text=(
            "Print the logs of a Machine: the output of the install script and the journal of the agent, which are on "
            "the host and are read over SSH as `ssh` logs in, and the console output of the last boot that failed, "
            "which metalman keeps in a Secret. Notes on stderr name each log that is missing, and why. Secrets that "
            "are known by their form are removed."
        ),
    ),
    CliCommand(
        path=("ssh",),
        help="Log in to the host of a Machine, as machina does",
        examples=(
            ("ssh web-01", "open a shell on the host of web-01"),
            ("ssh web-01 -- sudo journalctl -u unbounded-agent-daemon -f", "run a command there"),
            ("ssh web-01 -- -L 10250:127.0.0.1:10250 -N", "forward a port of this machine to the host"),
        ),
        arguments=_ssh_arguments,
        run="unbounded.cli.ssh:run",
        text=(
            "Log in to the host of a Machine with the ssh program of this machine: with the address, the user and the "
            "bastion of spec.ssh, and with the key of the Secret, if you may read it. Otherwise, ssh uses your own "
            "keys. The host must present a key that is pinned in spec.ssh.hostKeys or status.ssh. ssh reads none of "
            "your configuration. The key is in a file that only you can read, and that is removed at the end. The "
            "exit status is that of ssh."
        ),
    ),
    CliCommand(
        path=("console",),
        help="Show the fleet in a browser on this machine, with your rights",
        examples=(
            ("console", "print the address of the console, and serve it until Ctrl-C"),
            ("console --port 8642", "serve it on a port that stays the same"),
            ("console --allow-operations", "offer reboots, drains and other actions on the pages"),
        ),
        arguments=_console_arguments,
        run="unbounded.cli.console:run",
        text=(
            "Show the fleet in a browser on this machine, with the rights of your kubeconfig. The printed address "
            "opens the console in one browser; once it is used, another one is printed. The console only reads, "
            "unless operations are allowed. It needs the extra unbounded[console]."
        ),
    ),
    CliCommand(
        path=("support",),
        help="Write an archive with the state of a Machine, or of all, for a person who helps you",
        examples=(
            ("support web-01", "collect objects, Events, explanation, versions and logs of web-01"),
            ("support --all -o fleet.tar.gz", "collect those of all Machines, without logs of hosts"),
        ),
        arguments=_support_arguments,
        run="unbounded.cli.support:run",
        text=(
            "Write an archive with the state of a Machine and the objects around it, or of all Machines: objects, "
            "Events, what `why` and `tree` say, logs of hosts and of the controllers, consoles of failed boots, and "
            "versions. Secrets and what may be one are removed. Whatever you may not read is left out, and named on "
            "stderr and in README.txt of the archive, which has at most 64 MiB before compression. It has names and "
            "addresses: look through it before you pass it on."
        ),
    ),
    CliCommand(
        path=("plan",),
        help="Print what a command would do: its Machines, their order, and its obstacles",
        examples=(
            ("plan machine host-reboot web-01", "print the executor of a reboot, and what it would wait for"),
            ("plan machine host-reboot web-01 -o wide", "print its stages, too"),
            (
                "plan machine register --site rack1 --host 192.0.2.10 --ssh-username admin"
                " --ssh-private-key ~/.ssh/id_ed25519",
                "check whether a registration with its key and Secret would be accepted",
            ),
            (
                "plan machine operation create all --kind HostReboot -l unbounded-cloud.io/site=rack1",
                "print the Machines and their order",
            ),
            ("plan -f machines.yaml -n shop", "print the hosts that Machines of Container Cloud would claim"),
            ("plan -f host.yaml --delete", "print the steps of the deletion of a BareMetalHost"),
        ),
        arguments=_plan_arguments,
        run="unbounded.cli.plan:run",
        needs_api=False,  # it opens the API that the planned command's own flags select
        text=(
            "Print what a command would do, computed by the code of the controllers. Nothing is changed. The "
            "server validates the objects in a dry run. For bare metal, the plan reads the Secret of the "
            "BMC, and for `replace` metalman's reports on the image. For clouds, the provider's code "
            "validates the parameters, if it is installed beside the command. The plan calls no BMC, host or "
            "cloud. Lines with `not checked:` name facts that you have no permission to read, or that cannot "
            "be observed. With -f, the plan is that of `kubectl apply -f FILE`: registrations of hosts, their "
            "power and logins, claims, installs, drains and updates; with --delete, that of `kubectl delete "
            "-f FILE`. Exit status 1: the command would be rejected, or would fail at once."
        ),
    ),
    CliCommand(
        ("version",),
        "Print the version of this program, and of the cluster",
        (("version --client", "print the version of this program only"),),
        _version_arguments,
        "unbounded.cli.operation_commands.about:version",
        needs_api=False,
    ),
    CliCommand(
        ("completion",),
        "Print the completion script of `unbounded` for a shell",
        (
            ("completion bash", "print the script; in ~/.bashrc: source <(unbounded completion bash)"),
            ("completion zsh", "print the script; in ~/.zshrc, after compinit: source <(unbounded completion zsh)"),
            ("completion fish", "print the script; in ~/.config/fish/config.fish: unbounded completion fish | source"),
        ),
        _completion_arguments,
        "unbounded.cli.operation_commands.about:completion",
        needs_api=False,
        text=(
            "Print the completion script of `unbounded` for a shell. `kubectl unbounded …` needs only "
            "kubectl's own completion, which calls the program kubectl_complete-unbounded beside this one."
        ),
    ),
)
