"""Goals of nodes: what a node is built from, by its sources.

from_config    from the agent's configuration and facts of the host: pure
from_machine   from the Machine and its configuration, with the differences from the present node: pure
for_build      for a node that is about to be built
"""
