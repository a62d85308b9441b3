"""`kubectl unbounded bmc …`."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from unbounded.cli.plugin.command import CliCommand

PASSWORD_VARIABLE: Final = "UNBOUNDED_BMC_PASSWORD"  # noqa: S105 - the name of a variable


def _certify(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="Set the address of the BMC: https://HOST[:PORT]")
    parser.add_argument("--username", required=True, metavar="USER", help="Log in as this user")
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"Read the password from this file (default: ${PASSWORD_VARIABLE}, else a prompt on the terminal)",
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "--fingerprint",
        default="",
        metavar="SHA256",
        help="Accept only the certificate with this fingerprint (default: one that this machine's CAs verify)",
    )
    trust.add_argument(
        "--insecure",
        action="store_true",
        help="Accept the certificate that the BMC presents, and plain http",
    )
    parser.add_argument(
        "--system", default="1", metavar="ID", help="Check this member of Systems (default: 1, else the only one)"
    )
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="Write the page to this file, not to stdout")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="Write the recorded answers to this file, which `unbounded lab bmc --recording` replays",
    )
    parser.add_argument(
        "--allow-writes", action="store_true", help="Also write the boot override, read it back, and restore it"
    )
    parser.add_argument(
        "--no-redact", action="store_true", help="Keep serial numbers, UUIDs, addresses and names in page and profile"
    )


COMMANDS: Final = (
    CliCommand(
        path=("bmc", "certify"),
        help="Send the requests of metalman to a BMC, and grade its answers",
        examples=(
            ("bmc certify https://10.0.0.5 --username admin --password-file pw --insecure", "print a page"),
            (
                "bmc certify https://10.0.0.5 --username admin --insecure --output page.md --profile bmc.json",
                "ask for the password; write a page and a profile",
            ),
        ),
        arguments=_certify,
        run="unbounded.cli.bmc_certify:run",
        needs_api=False,
        text=(
            "Send the requests of metalman to a BMC, and grade its answers. The command needs no cluster. It "
            "reads only, unless --allow-writes is given, and never changes the power. A rejected password is not "
            "offered again. Page and profile have no credentials; serial numbers, UUIDs, addresses and names are "
            "replaced. Exit status: 0 for the grades A to C, 1 no answer, 2 invalid arguments, 4 the certificate is "
            "not trusted, 5 the BMC rejected the log-in, 6 no Redfish service at the URL, 7 grade F."
        ),
    ),
)
