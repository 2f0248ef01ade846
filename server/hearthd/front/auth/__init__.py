"""Authentication: tokens, certificates and users of this host.

Above: `hearthd.front.lanes`. Below: `hearthd.front.overload`.
"""
