"""FastVideo core: contracts, runtime and command line for video generation."""
