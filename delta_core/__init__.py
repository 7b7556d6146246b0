"""Delta Tokenizer: prompt tokenization at the cost of the new text, with exactly the reference's IDs."""

from .admission.admit import Admission
from .context import session_key
from .errors import ConfigError, DeltaError, FreezeError, Reason
from .metrics import Stats
from .options import Options
from .tokenizer import DeltaTokenizer

__version__ = "0.2.0"

__all__ = [
    "Admission",
    "ConfigError",
    "DeltaError",
    "DeltaTokenizer",
    "FreezeError",
    "Options",
    "Reason",
    "Stats",
    "session_key",
]
