"""Limits of what sessions may have in a device process, beside memory. Pure; below the session and its tables."""
