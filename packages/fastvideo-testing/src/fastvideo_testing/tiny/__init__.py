"""A complete model family, as small as one can be: what a family has to bring, and what tests run when any will do.

    card         the card: components, loops, tasks with their parameters, files
    programs     how the loops make up the two tasks
    model        text encoder, transformer and VAE, a few thousand parameters, and their factories
    plans        what all plans of the family have in common
    text, image, denoise, decode
                 one loop each: state, payload, values, loop, step body
    causal, causal_step, causal_card
                 the family's streams: a loop chunk by chunk, its steps, and a card of its own
    checkpoint   writes weights drawn from a seed, with the card beside them
    faults       the same family with steps that fail, or take long, on demand
    plugin       the hook that knows a checkpoint of the family

Its videos are coloured noise. They depend on every input and parameter, so that a mistake in any of them shows.
"""

from fastvideo_testing.tiny.card import TINY_CARD_ID, tiny_card
from fastvideo_testing.tiny.causal_card import TINY_CAUSAL_CARD_ID, tiny_causal_card
from fastvideo_testing.tiny.checkpoint import write_tiny_checkpoint

__all__ = ["TINY_CARD_ID", "TINY_CAUSAL_CARD_ID", "tiny_card", "tiny_causal_card", "write_tiny_checkpoint"]
