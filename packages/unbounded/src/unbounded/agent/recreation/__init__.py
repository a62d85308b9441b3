"""Recreation: replaces the node by a new one in the other slot, after its Node was deleted or where it never joined.

The old slot stays until the new node is proven. If the new node cannot be proven, the old one serves again.

    state_store          records on disk: the recreation under way, and the last one that failed
    recreation_decision  pure: whether a node needs a recreation
    version_resolution   the configuration version, and the goal, of a node that is about to be built
    plan                 pure: from the phase and the observation of both slots to the next step
    perform              executes the steps, over `Nodes`
    reconcile            one pass over a recreation under way
    node_sync            a node that is not being recreated: starts of stopped parts, labels and taints
    report               pure: conditions and other status of the Machine
    status               writes of the Machine's status: its claim, and the report
    controller           the loop
"""
