"""A provider whose instances are processes: a folder for each, in which its record stands.

`machines` is what a cloud would be, `provider` is what has to be written for one.
"""

from unbounded_process_provider.provider import LocalProcess

PROVIDER = LocalProcess()
