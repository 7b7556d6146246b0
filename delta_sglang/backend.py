"""The name of this backend. On its own, so that SGLang's processes that do not tokenize load nothing else."""

BACKEND = "delta"
