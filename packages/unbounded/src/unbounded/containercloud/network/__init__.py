"""Networks of hosts: addresses of Subnets, netplan from L2Templates, and their hand-over to the Machine of the host.

`subnets` has the addresses, `rendering` the macros, `model` and `plan` the next step of one host: all pure.
`controller` observes and executes.
"""
