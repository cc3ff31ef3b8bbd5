"""`python -m tests.interrupts.worker NAME COUNT SEED`: interrupt one call again and again; a line of JSON per interrupt."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import torch

from tests.interrupts.subjects import SUBJECTS, Call

_LATEST = 60.0  # seconds after which an interrupt that nothing came of is given up


def _equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _press_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)


def _interrupted(call: Call, delay: float) -> str:
    """What a Ctrl-C after `delay` seconds of calls ends in."""
    thread = threading.Thread(target=_press_after, args=(delay,))
    end = time.monotonic() + delay + _LATEST
    try:
        thread.start()
        while time.monotonic() < end:
            call()
        outcome = "nothing"
    except KeyboardInterrupt:
        outcome = "KeyboardInterrupt"
    except Exception as error:
        outcome = type(error).__name__
    thread.join()
    return outcome


def main(name: str, count: int, seed: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets processes in the background ignore it
    call = SUBJECTS[name]()
    expected = call()
    begin = time.perf_counter()
    call()
    length = time.perf_counter() - begin
    draw = random.Random(seed)
    for _ in range(count):
        outcome = _interrupted(call, draw.uniform(0.0, 2.0 * length))
        print(json.dumps({"outcome": outcome, "right": _equal(call(), expected)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
