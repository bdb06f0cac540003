"""The event-driven simulator: it runs a policy on a trace, chunk by chunk, without touching most of them."""
