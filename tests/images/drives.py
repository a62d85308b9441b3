"""Drives that erase themselves: `nvme` and `hdparm` with the output of the real tools, before a disk that is a file.

The formats are those of Debian 12: `nvme id-ctrl`, `list-ns` and `sanitize-log` of nvme-cli 2.3, and `hdparm -I`,
`-N` and `--dco-identify` of 9.65.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.images.support import Host

NVME: Final = r"""#!/bin/sh
echo "nvme $*" >>"$CALLS"
case $1 in
    id-ctrl) printf 'NVME Identify Controller:\nvid       : 0x144d\nsanicap   : %s\nfna       : 0x4\n' "$SANICAP" ;;
    list-ns)
        case $*:$NAMESPACES in
            *--all:*,*) set -- 1 2 ;;
            *--all:unmanaged) echo "NVMe status: Invalid Field in Command(0x2)" >&2; exit 1 ;;
            *) set -- 1 ;;
        esac
        for each; do printf '[%4u]:%#x\n' $((each - 1)) "$each"; done
        ;;
    sanitize)
        [ "$SANITIZE" != refused ] || { echo "NVMe status: Invalid Command Opcode(0x1)" >&2; exit 1; }
        echo 0x2 >"$STATE"
        ;;
    sanitize-log)
        state=$(cat "$STATE" 2>/dev/null || echo 0)
        printf 'Sanitize Progress                      (SPROG) :  32768\n'
        printf 'Sanitize Status                        (SSTAT) :  %s\n' "$state"
        [ "$state" != 0x2 ] || { [ "$SANITIZE" = lies ] || erase; echo "$SSTAT" >"$STATE"; }
        ;;
    format) [ "$FORMAT" = refused ] && { echo "NVMe status: Access Denied(0x286)" >&2; exit 1; } || erase ;;
esac
"""
HDPARM: Final = r"""#!/bin/sh
echo "hdparm $*" >>"$CALLS"
word() { printf '\t%s\t%s\n' "$(case " $SECURITY " in *" $1 "*) ;; *) echo not ;; esac)" "$2"; }
case $* in
    -I*)
        printf '\n/dev/sda:\n\nATA device, with non-removable media\n\tModel Number:       Samsung SSD 870 EVO 500GB\n'
        [ -z "$DCO" ] || printf 'Commands/features:\n\tEnabled\tSupported:\n'
        [ -z "$DCO" ] || printf '\t   *\tDevice Configuration Overlay feature set\n'
        case $SECURITY in *supported*) ;; *) exit 0 ;; esac
        printf 'Security: \n\tMaster password revision code = 65534\n\t\tsupported\n'
        word enabled enabled; word locked locked; word frozen frozen; word expired 'expired: security count'
        word enhanced 'supported: enhanced erase'
        printf '\t2min for SECURITY ERASE UNIT. 8min for ENHANCED SECURITY ERASE UNIT.\n'
        printf 'Logical Unit WWN Device Identifier: 5002538f31\n\tNAA\t\t: 5\n'
        ;;
    --dco-identify*)
        case $DCO in
            *[0-9]) ;;
            *) printf '\n/dev/sda:\n HDIO_DRIVE_CMD(dco_identify) failed: Input/output error\n' >&2; exit 5 ;;
        esac
        printf '\n/dev/sda:\nDCO Revision: 0x0002\nThe following features can be selectively disabled via DCO:\n'
        printf '\tTransfer modes:\n\t\t mdma0 mdma1 mdma2\n\t\t udma0 udma1 udma2 udma3 udma4 udma5 udma6\n'
        printf '\tReal max sectors: %s\n\tATA command/feature sets:\n\t\t SMART security HPA 48_bit\n' "$DCO"
        ;;
    -N*) printf '\n/dev/sda:\n max sectors   = %s\n' "$SECTORS" ;;
    *--security-erase*)
        [ "$ERASES" != refused ] || { printf '\n/dev/sda:\nSECURITY_ERASE: Input/output error\n' >&2; exit 5; }
        erase
        ;;
esac
"""
ERASE: Final = "erase() {{ dd if=/dev/zero of={disk} bs=1048576 count={mib} conv=notrunc,fsync 2>/dev/null; }}\n"


def self_erasing(host: Host, disk: Path, mib: int, **settings: str) -> Path:
    """Put the tools of a drive in front of a disk; return the file with their calls.

    Args:
        settings: SANICAP, NAMESPACES (1; 1,2; unmanaged), SANITIZE (refused, lies), SSTAT in the end and FORMAT of
            NVMe; SECURITY (words that hold of an ATA drive), ERASES, SECTORS, and DCO (all sectors, with those that an
            overlay hides; "frozen" for a drive that does not tell; empty for a drive without overlays).
    """
    calls, state = host.root / "calls", host.root / "sanitize"
    drive = {"SANICAP": "0x3", "NAMESPACES": "1", "SANITIZE": "", "SSTAT": "0x101", "FORMAT": ""}
    known = {**drive, "SECURITY": "", "ERASES": "", "SECTORS": "2048/2048, HPA is disabled", "DCO": ""}
    given = {"CALLS": str(calls), "STATE": str(state), **known, **settings}
    lines = "".join(f"{name}='{value}'\n" for name, value in given.items()) + ERASE.format(disk=disk, mib=mib)
    for name, script in (("nvme", NVME), ("hdparm", HDPARM)):
        command = host.command(name)
        command.unlink(missing_ok=True)
        head, _, rest = script.partition("\n")
        command.write_text(f"{head}\n{lines}{rest}")
        command.chmod(0o755)
    calls.touch()
    return calls
