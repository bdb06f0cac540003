"""Fakes, a tiny model family and a pytest plugin for the tests of FastVideo packages.

tiny      a complete model family, as small as one can be
hub       a model hub on the loopback interface
plugin    the pytest plugin
"""

from __future__ import annotations

__all__ = ["hub", "tiny"]
