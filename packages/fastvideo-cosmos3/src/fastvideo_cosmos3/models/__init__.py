"""The modules of Cosmos3: the mixture of transformers, the video autoencoder, sound decoder, tokenizer, vision."""
