"""The `sagda` command: from a command line to an exit code."""

import errno
import json as json_module
import os
import signal
import sys

import cyclopts
from pydantic import ValidationError

from sagda.check import BadKind, BadValue
from sagda.commands import federation, keys, model, report, run, theory
from sagda.commands.app import app
from sagda.runs import config as configs

__all__ = [
    "app",
    "federation",
    "keys",
    "main",
    "model",
    "report",
    "run",
    "theory",
]

USER, DISK, FAILED = 2, 3, 1
# Codes of a command that ended as it should, or was asked to stop.
ENDED = 0, 128 + signal.SIGINT, 128 + signal.SIGTERM


def cause_of(error: cyclopts.CycloptsError) -> str:
    """A sentence for a mistake in the flags."""
    if isinstance(error.__cause__, ValidationError):
        return configs.sentence(error.__cause__, configs.Config)
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; 0 success, 2 a user's mistake, 3 disk, 130/143 stopped."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    code = answer(tokens)
    processes = sys.modules.get("sagda.simulator.processes")
    if processes is not None and code not in ENDED:
        processes.leave(code)  # else JAX would wait for the other processes
    return code


def answer(tokens: list[str]) -> int:
    """Run a command; every mistake ends in a sentence and a code."""
    debug, json = "--debug" in tokens, "--json" in tokens
    tokens = [token for token in tokens if token != "--debug"]

    def fail(code: int, message: str) -> int:
        if json:
            print(json_module.dumps({"error": message, "exit_code": code}))
        print(f"sagda: {message}", file=sys.stderr)
        return code

    try:
        code = app(tokens, exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError as error:
        return fail(USER, cause_of(error))
    except (BadValue, BadKind) as error:
        if debug:
            raise
        return fail(USER, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if debug:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else (error.strerror or str(error))
        where = f" at {error.filename}" if error.filename else ""
        return fail(DISK, f"{what}{where}; what was kept before is whole.")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if debug:
            raise
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return fail(FAILED, f"unexpected {type(error).__name__}: {said} (see --debug)")


if __name__ == "__main__":
    sys.exit(main())
