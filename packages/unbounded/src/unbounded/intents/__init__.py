"""Intents of users: the writes that a request means, with what they destroy, and their execution.

The command line and the console share them: both show the same loss, plan the same writes, and make them. Reads of
flags and terminals stay in the command line.
"""
