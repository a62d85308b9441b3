"""Hosts that boot: what firmware, installer, cloud-init and agent of a host do, seen from the network.

A host boots what its BMC tells it to, reports its hardware, "installs" an image by fetching all of it, and starts from
its disk: there it reports like cloud-init, joins the cluster of its agent's configuration, and renews its Node. Nothing
is executed and no disk is written.
"""
