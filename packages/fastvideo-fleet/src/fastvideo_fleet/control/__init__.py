"""Pure decisions: what to do with sessions and workers, given what the fleet looks like. No I/O, no clock."""
