"""Serial consoles: those that work, and their misbehaviours."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.dials import BmcDials


def serial_console(dials: BmcDials) -> BmcDials:
    """No fault: the BMC offers the serial console over SSH and over a web socket.

    openbmc/bmcweb (`/console0`; the system lists SSH on port 2200), ComputerSystem 1.26 of DMTF for the web socket.
    """
    return replace(dials, console="both")


def serial_console_disabled(dials: BmcDials) -> BmcDials:
    """The system lists the serial console, and none of its services is enabled.

    `ServiceEnabled` of ComputerSystem 1.13 of DMTF.
    """
    return replace(dials, console="disabled")


def serial_console_drops(dials: BmcDials) -> BmcDials:
    """The BMC closes the serial console at the first input.

    openbmc/bmcweb closes all web sockets of a console when its own connection to the UART's server ends.
    """
    return replace(dials, console="both", console_drops_after=1)


def serial_console_floods(dials: BmcDials) -> BmcDials:
    """The serial console sends as fast as the client takes it.

    No thread names this one; a UART is slower, and a client must not rely on that.
    """
    return replace(dials, console="both", console_output="flood")


def serial_console_silent(dials: BmcDials) -> BmcDials:
    """The serial console opens, and never sends a byte.

    No thread names this one; a host without a console on its serial port has this effect.
    """
    return replace(dials, console="both", console_output="silent")


def serial_console_taken(dials: BmcDials) -> BmcDials:
    """All sessions of the serial console are taken by others.

    `MaxConcurrentSessions` of ComputerSystem 1.13 of DMTF.
    """
    return replace(dials, console="both", console_sessions=0)


def serial_console_denied(dials: BmcDials) -> BmcDials:
    """The account may use Redfish, and no serial console.

    openbmc/bmcweb lets only users of the group hostconsole open `/console0`.
    """
    return replace(dials, console="both", console_denied=True)
