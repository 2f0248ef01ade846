"""The daemon's front process: wiring, start, reload, drain and end.

The top layer of `hearthd.front`. Below: `hearthd.front.http`.
"""
