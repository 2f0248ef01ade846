"""Compiled modules, their functions, and how these are launched: arguments, geometry, attributes, dispatches.

Above: `hearth.graphs`. Below: `hearth.arrays`.
"""
