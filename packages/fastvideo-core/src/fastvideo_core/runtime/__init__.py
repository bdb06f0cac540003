"""The runtime: loads models, runs the steps of loops, and serves requests. It defines no model maths."""
