"""What a sidecar and its owner agree on."""

HEAR, SAY = 3, 4
"""Descriptors of the sidecar: it reads its owner's lines from one and answers on the other."""
TALK = 5
"""And the owner's stderr, if it has one: for a line about the run while that goes on."""
CLOSED, CLOSED_NOW = "closed", "closed now"
"""The end of the run is written; "now": the owner waits until the store has it."""
LOG = "keeper.log"
"""File of the run's folder with whatever the sidecar had to say besides."""
ATTACH_VARIABLE = "DIPPM_ATTACH"
"""Set to "no", runs stay in the spool until somebody attaches them: nodes that reach no store. Set
to "now", each is attached when it ends, whatever is measured beside it."""
