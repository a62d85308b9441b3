"""Inputs with which a machine joins a cluster, for all components that set up hosts, and for the agent on the host.

`facts` follows the cluster's address and version, `agent_config` writes and reads the agent's file, and `tokens`
creates the credential of one Machine's first request.
"""
