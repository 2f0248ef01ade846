"""The interface of a backend, one page a part; `hearthd.device.cuda` and `hearthd.device.cpu` implement it.

Above: `hearthd.device.outbox`. Below: `hearthd.device.platform`.
"""
