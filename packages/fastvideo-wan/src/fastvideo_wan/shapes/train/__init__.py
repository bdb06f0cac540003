"""Training of the shipped model: autoencoder, latents, transformer with text encoder."""
