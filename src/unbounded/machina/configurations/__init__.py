"""MachineConfigurations: their numbered versions, who uses them, and which Machine is bound to which.

A version can be edited until an agent has taken its Machine's slot to make a node from it; then it stays as it is, and
a changed template becomes the next number. Numbers are never used twice. What a Machine is bound to changes nothing on
its host: its agent takes the newest version, or the one that is named, when it makes the node anew.

    usage       which Machines use a configuration, and which of its versions
    plan        pure: plan(seen) -> what becomes of the versions of one configuration
    binding     pure: bind(machine, configurations) -> what one Machine is bound to
    versions    the loop over MachineConfigurations
    binder      the loop over Machines
"""
