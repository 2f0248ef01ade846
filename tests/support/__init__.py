"""Modules that tests share: fake peers, rigs of one layer, real daemons, programs and environments.

`client`, `front`, `device` and `cpu` serve the unit tests of these layers; `daemon` and `collectives` serve the tests
of running daemons. No module here is a test.
"""
