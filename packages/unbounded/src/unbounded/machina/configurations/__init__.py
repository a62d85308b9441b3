"""MachineConfigurations: their numbered versions, their users, and the binding of Machines to them.

A version can be edited until an agent locks its Machine to make a node from it. Then the version is final, and a
changed
template becomes the next number. Numbers are never reused. Binding changes nothing on a host: its agent takes the
newest version, or the named one, when it recreates the node.

    usage       Machines that use a configuration and its versions
    plan        pure: plan(observed) -> actions on the versions of one configuration
    binding     pure: bind(machine, configurations) -> binding of one Machine
    versions    loop over MachineConfigurations
    binder      loop over Machines
"""
