"""For all tests."""

import signal

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in jobs put into the background by a shell; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
