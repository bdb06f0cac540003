"""The networks of the Wan family: transformer, video autoencoder, text encoder."""
