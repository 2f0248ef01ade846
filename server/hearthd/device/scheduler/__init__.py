"""Fair scheduling of sessions: arrivals, backlog, shares, time slices and device time.

Above: `hearthd.device.fast_path`. Below: `hearthd.device.durable`.
"""
