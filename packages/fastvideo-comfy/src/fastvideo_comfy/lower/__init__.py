"""From a flat graph to requests: what each kind of node means for a card."""
