"""What crosses the product boundary: requests, parameters, artifacts, events, cancellation."""
