"""The host agent: makes a host a node, keeps it one, and takes everything back.

It owns the nspawn machines kube1 and kube2, what `start` changed on the host, and its own binary. It leaves the host's
power to others (but for a reboot from inside where nobody else can), and Pods to kubelet.

    layout    where everything lies on a host
    model     the two slots, what a node is made from, what is seen of it
    ports     what the agent needs of the host, in its own words
    host/     the real parts behind these ports: commands, systemd, machined
    node/     one slot: building, starting, stopping, removing it
    steps/    what start does to the host, step by step, each with its way back
    daemon/   the identity, the caches, and what runs all the time
    operations/   the kinds of MachineOperation that it carries out
    upgrade/  the agent's own binary: blue and green
    recreation/   a node made anew in the other slot
    reset/    the way back
    preflight/    whether a host can become a node
"""
