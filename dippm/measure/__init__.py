"""What a run costs: counters, and the protocol that turns them into one measurement."""
