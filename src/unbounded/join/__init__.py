"""What a machine needs to join a cluster, for everybody who brings machines to it, and for the agent on the host.

`facts` knows where the cluster is, `agent_config` writes and reads the agent's file, `tokens` makes the credential with
which one Machine introduces itself.
"""
