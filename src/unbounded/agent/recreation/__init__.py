"""A node made anew in the other slot: because its Node was deleted, or because it never joined.

The old slot stays until the new node is proven; where it cannot be, the old one serves again.

    state       what is on disk: the recreation that is under way, and the last one that failed
    plan        pure: from the phase and what is seen of both slots to the next step
    proof       pure: what is still missing until a node counts as one
    report      pure: conditions and other status of the Machine
    holding     the Machine's slot, taken and given back
    perform     the steps, over ports.Nodes
    controller  when it begins, and the loop
"""
