"""For all tests."""

import os
import signal

from hypothesis import settings

# A shell's background jobs ignore Ctrl-C, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run in several processes at once. If each used all cores, threads would wait for one another, and the suite would take
# several times as long. Set before torch is imported; processes that tests start inherit it.
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if workers > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

settings.register_profile("any machine", deadline=None)  # a busy one takes many times as long for an example
settings.load_profile("any machine")
