"""The kinds of Container Cloud: Machines that claim bare-metal hosts, and the objects that describe hosts and clusters.

Their groups, fields and words are those of Mirantis Container Cloud 2.28. Fields that it has and that have no effect
here are kept (`NoEffect`), and a warning names them when they are set.
"""
