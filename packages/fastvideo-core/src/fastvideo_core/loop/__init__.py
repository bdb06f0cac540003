"""The loop contract, its one driver, the state codec, and the policies and samplers that step bodies are made of."""
