"""Cluster-wide controllers. One process at a time runs them all.

    controller       combines them with their caches and Events, behind one Lease
    csr_approval/    certificates of agents and kubelets
    machines/        Machines over SSH: probed, provisioned once, followed, reset; and the Nodes of all
    provisioning/    runs of the install script on hosts
    ssh/             logins with pinned host keys, through bastions
    configuration_plan, configuration_versions, configuration_binding
                     MachineConfigurations, their versions, and the binding of Machines to them
    settings         flags, environment and file
    main             the process

The supervisor of MachineOperations is in `unbounded.operations`.
"""
