"""One slot of a node: its files, and how it is built, started, stopped and removed.

nodes           HostNodes, the port `Nodes`
slot_builder    a slot from scratch, in a work folder that is renamed when complete
machine_runner  its machine and the services inside
build_record    the record of a slot's build, on disk
files, kubelet, containerd, nspawn, nvidia   contents of its files: pure
devices         devices of the host that the machine gets
"""
