"""The `hearth` command.

`import hearth` imports none of these modules, and they need no package that the client does not need.

The top layer of `hearth`. Below: `hearth.aio`.
"""
