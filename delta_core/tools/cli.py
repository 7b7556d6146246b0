"""The `delta` command. Each of its commands is a module of its own, imported when it is run.

Exit codes: 0 done, 1 the answer is no (refused, differs, not certified), 2 wrong use or something missing, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import DeltaError, FreezeError
from .console import tell

# By name: the module, which has `add_arguments(parser)` and `run(args)`, and what `delta --help` says.
COMMANDS = {
    "demo": ("delta_core.tools.demo.command", "run an agent session turn by turn against the reference"),
    "fetch": ("delta_core.tools.fetch", "bring real tokenizer files and check their digests"),
    "doctor": ("delta_core.tools.doctor", "say whether a tokenizer is admitted, section by section"),
    "freeze": ("delta_core.tools.freeze", "make a config for a tokenizer of your own"),
    "tables": ("delta_core.tools.freezing.tables", "list the pre-tokenizers that are known, or derive another one"),
    "certify": ("delta_core.tools.certify.command", "certify a fast encoder against the installed reference"),
    "verify": (
        "delta_core.tools.verify.command",
        "an exactness campaign on your own tokenizer and text, with controls",
    ),
    "bench": ("delta_core.tools.bench", "side by side with every exact peer (in a checkout)"),
    "version": ("delta_core.tools.version", "versions of this package, the reference and the encoders"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="delta",
        usage="delta [-h] [--version] COMMAND ...",
        description="Exact, incremental prompt tokenization.",
        epilog="\n".join(["commands:", *(f"  {name:10}{line}" for name, (_, line) in COMMANDS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"delta-tokenizer {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="`delta COMMAND --help` tells its options")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    asked = _parser().parse_args(argv)
    module, line = COMMANDS[asked.command]
    try:
        command = importlib.import_module(module)
        parser = argparse.ArgumentParser(prog=f"delta {asked.command}", description=line)
        command.add_arguments(parser)
        return int(command.run(parser.parse_args(asked.arguments)))
    except (DeltaError, OSError) as error:
        tell(f"delta {asked.command}: {error}")
        return 1 if isinstance(error, FreezeError) else 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
