"""`fastvideo serve`, and the commands that speak to a server: one a module, in the form of core's own."""
