"""`fastvideo fleet …`: one command a module, in the form of core's own."""
