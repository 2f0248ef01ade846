"""Division of device memory and device time among processes and tenants.

Above: `hearthd.front.supervisor`. Below: `hearthd.front.links`.
"""
