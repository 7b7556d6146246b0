"""Certification: is a fast encoder the reference, in every context that the pattern can tell apart?"""
