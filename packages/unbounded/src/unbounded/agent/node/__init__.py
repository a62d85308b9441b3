"""One slot of a node: its files, and how it is built, started, stopped and removed.

nodes           HostNodes, the port `Nodes`
slot_builder    a slot from scratch, in a work folder that is renamed when complete
rootfs          its root file system, from an image or by debootstrap
machine_runner  its machine and the services inside
slot_files      the record of the slot's build, and the removal of its files
files, kubelet, containerd, nspawn, gpus   contents of its files
devices         devices of the host that the machine gets
"""
