"""Delta Tokenizer: prompt tokenization at the cost of the new text, with exactly the reference's IDs."""

from .context import session_key
from .errors import ConfigError, DeltaError, FreezeError, Reason
from .metrics import Stats
from .options import Options
from .tokenizer import Admission, DeltaTokenizer

__version__ = "0.1.0"

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
