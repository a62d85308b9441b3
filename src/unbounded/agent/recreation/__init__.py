"""Recreation: replaces the node by a new one in the other slot, after its Node was deleted or where it never joined.

The old slot stays until the new node is proven. If the new node cannot be proven, the old one serves again.

    state       records on disk: the recreation under way, and the last one that failed
    plan        pure: from the phase and the observation of both slots to the next step
    proof       pure: requirements that a node does not meet yet
    report      pure: conditions and other status of the Machine
    desk        writes of the Machine's status: its claim, and the report
    perform     executes the steps, over ports.Nodes
    trigger     pure: whether a node needs a recreation
    controller  the loop
"""
