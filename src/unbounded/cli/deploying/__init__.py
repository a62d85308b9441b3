"""Bringing the project to a cluster, and Machines to the project: `install`, `site`, `machine register`, `config`.

`workloads` and `wanted` say what a cluster is to have, `machines` what a Machine looks like that the command line
describes: pure, so that `deploy/` is written from the same tables. `applying` brings objects to a server, and
`components` tells whether the controllers run beside it already.
"""
