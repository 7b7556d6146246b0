"""Freezing: what a cut rule needs to know of a pipeline is derived once, from the reference's own engines."""
