"""Read-only boot files over TFTP (RFC 1350; options: RFC 2347, 2348, 2349, 7440).

`protocol` has the wire format (packets, requested names, the negotiation of options), and one transfer as a state
machine that neither opens a socket nor reads a clock. `server` is the shell on asyncio; the served files come from the
port `protocol.TftpFiles`.
"""
