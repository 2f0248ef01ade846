"""Links to the daemons of other nodes, for groups over several nodes.

Above: `hearthd.front.rpc`. Below: `hearthd.front.lanes`.
"""
