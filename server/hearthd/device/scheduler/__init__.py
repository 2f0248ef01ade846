"""Fair scheduling of sessions: arrivals, backlog, shares, time slices and device time.

Above: `hearthd.device.channels`. Below: `hearthd.device.durable`.
"""
