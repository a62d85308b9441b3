"""The console: the fleet in a browser, with the rights of the user who looks.

The console owns sessions, live data and views. It derives nothing about Machines itself: explanations, plans and trees
come from the libraries below. It has no credentials of its own; each session has those of its user.
"""
