"""Lifecycle of Machines that are reached over SSH, and the Nodes of all Machines."""
