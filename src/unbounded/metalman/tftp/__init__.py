"""Boot files over TFTP, to be read only (RFC 1350; options: RFC 2347, 2348, 2349, 7440).

`packet` is the wire format, `options` what is agreed on, `names` turns asked names into plain ones, and `transfer` is
one transfer as a state machine without a socket or a clock. `server` is the shell on asyncio; what it serves comes
through `ports.Files`.
"""
