"""Matching of collective operations over the devices, and their communicators.

Above: `hearthd.front.overload`. Below: `hearthd.front.durable`.
"""
