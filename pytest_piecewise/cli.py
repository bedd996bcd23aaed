"""What can be done with reports, baselines and histories outside a pytest run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from pytest_piecewise import __version__
from pytest_piecewise.commands import commands
from pytest_piecewise.errors import PiecewiseError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 2 for what cannot be done as asked."""
    parser = argparse.ArgumentParser(prog="pytest-piecewise", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    chosen = parser.add_subparsers(dest="command", required=True)
    known = commands()
    for name, command in known.items():
        text = " ".join((command.__doc__ or "").split())
        command.add_arguments(chosen.add_parser(name, help=text.partition(". ")[0].rstrip("."), description=text))
    parsed = parser.parse_args(arguments)
    try:
        code = known[parsed.command].run(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, `head` for example, has seen enough; nothing is left to be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except PiecewiseError as error:
        sys.stderr.write(f"pytest-piecewise {parsed.command}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
