"""Fakes, a tiny model family and a pytest plugin for the tests of FastVideo packages.

tiny        a complete model family, as small as one can be
gate        requests among others give what they give alone: for any card
simulation  the real scheduler on a pool that takes no time
hub         a model hub on the loopback interface
plugin      the pytest plugin
"""

from __future__ import annotations

__all__ = ["gate", "hub", "simulation", "tiny"]
