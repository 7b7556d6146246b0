"""Certification: whether a fast encoder is the reference, in every context that the pattern can tell apart."""
