"""The cards of the Wan family: those published on the hub, the one that ships, and those made of a folder."""
