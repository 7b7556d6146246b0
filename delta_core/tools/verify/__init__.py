"""The exactness campaign: batteries against the reference, controls that must fail, a report."""
