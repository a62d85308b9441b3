"""Hosts in stock: BareMetalHosts, the Machine that each has, and the credentials of their BMCs."""
