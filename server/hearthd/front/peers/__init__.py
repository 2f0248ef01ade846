"""Links to the daemons of other nodes, for groups over several nodes.

Above: `hearthd.front.admission`. Below: `hearthd.front.lanes`.
"""
