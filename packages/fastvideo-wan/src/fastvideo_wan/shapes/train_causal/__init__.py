"""The training recipe of `wan-shapes-causal`, which begins with the weights of `wan-shapes`."""
