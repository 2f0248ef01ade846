"""What every test shares."""

from __future__ import annotations

import signal
import threading

from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("hearth", deadline=None, print_blob=True)
settings.load_profile("hearth")

# A shell runs what it puts in the background with Ctrl-C ignored, and programs inherit that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
