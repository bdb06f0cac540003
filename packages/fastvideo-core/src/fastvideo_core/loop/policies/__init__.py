"""Policies: the default decomposition of a denoise step into guidance, experts, shift, precision and conditioning.

A policy is a small frozen object or a pure function. A family whose maths is braided writes its own step body and uses
them as a library.
"""
