"""One slot: what stands in it, how it is built, started, stopped and removed.

nodes       HostNodes, the port `Nodes`
building    a slot from scratch, beside its place
running     its machine and the services inside
applied     what a slot was made from, on disk
files, kubelet, containerd, nspawn, nvidia   what is written for it: pure
devices     what of the host is passed on to it
"""
