"""Container Cloud: Machines of cluster.k8s.io that claim BareMetalHosts, and the Clusters that they belong to.

It owns the claim of hosts, the network of hosts, the life and the deletion of such Machines, the updates of Clusters,
and MachinePools. It touches no host and no node itself. For each BareMetalHost it keeps one Machine of
unbounded-cloud.io, and creates MachineOperations, MachineConfigurations and MachineDisruptionBudgets, which metalman,
machina and the agents carry out.
"""
