"""The interface of a backend, one module for each part; `hearthd.device.cuda` and `hearthd.device.cpu` implement it.

Above: `hearthd.device.outbox`. Below: `hearthd.device.platform`.
"""
