"""Requests that the API server passes on to the kubelet of a Pod's node: logs, exec, attach and port-forward.

`options` parses a client's query, `location` finds the kubelet, `client` connects to it, and `tunnel` forwards the
bytes of an upgraded connection. `http.kubelet` serves the client.
"""
