"""Requests that the API server passes on to the kubelet of a Pod's node: logs, exec, attach and port-forward.

`options` reads what a client asks for, `location` finds the kubelet, `client` connects to it, and `tunnel` carries the
bytes of an upgraded connection. HTTP towards the client is the business of `http.kubelet`.
"""
