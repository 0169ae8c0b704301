"""The protocol between a sidecar and its owner."""

HEAR, SAY = 3, 4
"""Descriptors of the sidecar for its owner's lines and for its answers."""
TALK = 5
"""Descriptor of the owner's stderr, if it has one, for warnings during the run."""
CLOSED, CLOSED_NOW = "closed", "closed now"
"""Sent when the end of the run is recorded; "now": the owner waits until the store has it."""
LOG = "keeper.log"
"""File in the run's folder with the sidecar's stderr."""
ATTACH_VARIABLE = "DIPPM_ATTACH"
""""no": runs stay in the spool until they are attached by hand, for nodes without access to the
store. "now": each run is attached when it ends, even while other runs are measured."""
