"""The scheduler: pure decisions about which requests start, and which of their steps run next, where, and together.

Nothing here does I/O, reads a clock, or touches a tensor: times are given, so that the same events give the same
decisions on a real pool, on a fake one, and in a replay.
"""
