"""Runs of the install script and of the reset on hosts, as host processes that outlive the connection.

model      types of a run, and its messages, without secrets of the host's output
remote     HostInstaller: begins, follows, observes, clears and resets over a Shell; scripts/ has the code for the host
"""
