"""Whether a host can become a node: looked at before anything on it is changed, and told to people and programs.

report   what was found, what of it counts, and both outputs: pure
seen     what is looked at, as data
host     the checks of the host: pure
wanted   the checks of what the configuration names, such as URLs: pure
look     reads the host
reach    asks the network
run      all of it: `run_preflight`

Nothing that is told holds a secret or an address: reports are pasted into tickets.
"""
