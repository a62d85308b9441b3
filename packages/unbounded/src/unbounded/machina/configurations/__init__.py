"""MachineConfigurations: their numbered versions, their users, and the binding of Machines to them.

A version can be edited until an agent locks its Machine to make a node from it. Then the version is final, and a
changed template becomes the next number. Numbers are never reused. Binding changes nothing on a host: its agent takes
the newest version, or the named one, when it recreates the node.

    plan        pure: the users of a configuration, and plan(observed) -> actions on its versions
    versions    loop over MachineConfigurations
    binding     bind(machine, configurations) -> binding of one Machine, and the loop over Machines
"""
