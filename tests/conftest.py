"""For all tests."""

import signal

from hypothesis import settings

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in jobs put into the background by a shell; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("any machine", deadline=None)  # a busy one takes many times as long for an example
settings.load_profile("any machine")
