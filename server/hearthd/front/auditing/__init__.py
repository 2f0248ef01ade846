"""The audit log on disk: its chain, the keys that sign it, the anchors that fix its end, and how all of it is verified.

Covers files; not which events are noted (`front/audit.py`, above). Below are only settings and `hearth_proto`.
"""
