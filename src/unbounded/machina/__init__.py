"""The cluster-wide controllers, of which one process at a time runs all.

    controller       puts them together with their caches and Events, behind one Lease
    approval/        who gets the certificate of an agent or of a kubelet
    configurations/  MachineConfigurations, their versions, and which Machine is bound to which
    machines/        Machines over SSH: probed, set up once, followed, reset; and the Nodes of all
    provisioning/    runs of the install script on hosts
    ssh/             logins with pinned host keys, through bastions
    settings         flags, environment and file
    main             the process

The steward of MachineOperations stands in `unbounded.operations`.
"""
