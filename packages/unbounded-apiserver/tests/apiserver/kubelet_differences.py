"""Exchanges of the recording of a kubelet that the server answers otherwise, by reason."""

from typing import Final

FORK: Final = "the recorded distribution puts a ConfigMap of its own into the volume with a Pod's token"
EXEC: Final = "sent without an upgrade, which the recording does not have; the recorded server did not find the host"
PACE: Final = "two controllers change a Node, or empty a namespace, in another order or sooner"

ALWAYS: Final[dict[int, str]] = {
    **dict.fromkeys((62, 105, 253, 292, 343, 360, 419, 617, 758), FORK),
    119: EXEC,
}
AT_TIMES: Final[dict[int, str]] = dict.fromkeys((304, 314, 337, 448, 449, 455, 457, 465, 494, 499, 748, 753, 757), PACE)
DIFFERENT: Final = ALWAYS | AT_TIMES
