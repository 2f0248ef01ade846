"""What every test shares."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("hearth", deadline=None, print_blob=True)
settings.load_profile("hearth")
