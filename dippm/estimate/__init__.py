"""A graph under conditions becomes an answer: latency, memory, energy, with their intervals."""
