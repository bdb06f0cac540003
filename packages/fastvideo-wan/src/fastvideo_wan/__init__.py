"""The Wan family for FastVideo."""
