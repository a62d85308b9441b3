"""A certificate of an authority that signs nothing: where one is only read. Good for a hundred years."""

from __future__ import annotations

import base64
from typing import Final

PEM: Final = """\
-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUCUJu7uKCEI0vhf26S0Lcz34WfgYwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFdGVzdHMwIBcNMjYxMTIyMDc1ODQwWhgPMjEyNjEwMjkwNzU4
NDBaMBAxDjAMBgNVBAMMBXRlc3RzMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
tEyqWi+zBnubMQgRIK8wDnibjMy39C2rDZMBPlaHxrbLQKVHun49QGAjJxanHSae
7SppENC2dZyrXl6/K6QzBKNTMFEwHQYDVR0OBBYEFOQfgk2IiH88V0zMFsXLfLpj
PNviMB8GA1UdIwQYMBaAFOQfgk2IiH88V0zMFsXLfLpjPNviMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAMugT053Sq/4uPLzg13NYtPrKIRMzCNA
mXQ3NAZV4EUaAiBlFfo5cv9KUhxMsc8DY3Fniclti6++XhPuDm4LTDMZsg==
-----END CERTIFICATE-----
"""
BASE64: Final = base64.b64encode(PEM.encode()).decode()
