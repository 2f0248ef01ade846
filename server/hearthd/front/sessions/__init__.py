"""Sessions of clients: attachment, queues, resumption, transfers and publications.

Above: `hearthd.front.links`. Below: `hearthd.front.audit`.
"""
