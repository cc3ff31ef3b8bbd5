"""What torchrun says of processes that did their work."""

from __future__ import annotations

ABORTED_AT_EXIT = "terminate called without an active exception"
"""torch's gloo group now and then aborts a process that has ended its program and is being taken down: on a loaded machine one in
thirty plain DistributedDataParallel jobs without stepgrad, `destroy_process_group` or not (torch 2.15). Another death of a
process has another message."""


def ended_well(code: int, output: str) -> bool:
    """Whether a job under torchrun did all it had to; its tests look at the results themselves.

    >>> ended_well(0, ""), ended_well(1, "RuntimeError"), ended_well(1, f"done\\n{ABORTED_AT_EXIT}\\n")
    (True, False, True)
    """
    return code == 0 or (ABORTED_AT_EXIT in output and "Traceback" not in output.split(ABORTED_AT_EXIT)[0])
