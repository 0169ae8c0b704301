"""Processes that share a GPU: what each costs beside the others."""
