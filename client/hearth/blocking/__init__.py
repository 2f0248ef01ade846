"""The client whose calls block the calling thread: the classes that `hearth` itself exports.

Covers calls that wait. Does not cover the code that these classes share with their siblings in `hearth.aio`, which is
in the modules named ``base_*`` below.

Above: `hearth.dask`. Same layer: `hearth.aio`. Below: `hearth.collectives`.
"""
