"""Inputs with which a machine joins a cluster, for all components that set up hosts, and for the agent on the host.

`cluster_facts` follows the cluster's address and version, `agent_config` has the agent's file, and `agent_config_file`
reads it. `agent_install` has the scripts that install the agent. `bootstrap_tokens` creates the credential of one
Machine's first request. `labels_and_taints` has those of a Node.
"""
