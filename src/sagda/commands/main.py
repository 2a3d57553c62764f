"""The entry point of `sagda`: the list of commands, and exit codes for errors.

To add a command, write a function in a file here and add one line to `COMMANDS`. Flags
that several commands share are in `app.py`.
"""

import errno
import json as json_module
import os
import signal
import sys
from importlib import import_module

import cyclopts
from cyclopts import App, Group
from pydantic import ValidationError

from sagda.check import BadKind, BadValue
from sagda.commands.app import CommandFailed, Exit, Flags, app
from sagda.runs.config import sentence

# The groups of `sagda --help`, with their commands, in the order shown. An entry is the
# module in this room and the function, or the `App` of a command with sub-commands.
COMMANDS = {
    "Start here": (
        "run:run",
        "run:compare",
        "run:resume",
        "run:sweep",
        "data:list_",
        "data:data",
        "data:partition",
        "report:report",
    ),
    "Use a trained model": ("model:predict", "model:evaluate"),
    "Theory": ("theory:advise", "theory:theory"),
    "Real federations": (
        "federation:federation_demo",
        "federation:serve",
        "federation:join",
        "keys:keys",
        "federation:verify",
    ),
    "Paper": ("paper:reproduce",),
}

for title, commands in COMMANDS.items():
    group = Group.create_ordered(title)
    for place, entry in enumerate(commands):
        module, _, name = entry.partition(":")
        command = getattr(import_module(f"sagda.commands.{module}"), name)
        if isinstance(command, App):  # a group such as `sagda keys`, with subcommands
            command.group, command.sort_key = group, place
            app.command(command)
        else:
            app.command(command, group=group, sort_key=place)

other = Group.create_ordered("Other")
for name in ("--help", "--version", "--install-completion"):
    app[name].group = other

# The exit codes of commands that did not fail: done, or stopped by a signal.
ORDERLY = 0, 128 + signal.SIGINT, 128 + signal.SIGTERM


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code (see `app.Exit`)."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    code = answer(tokens)
    # Only commands that use JAX have imported this module, so do not import it here.
    processes = sys.modules.get("sagda.simulator.processes")
    if processes is not None and code not in ORDERLY:
        processes.leave(code)
    return code


def answer(tokens: list[str]) -> int:
    """Run a command and return its exit code. An error prints one sentence."""
    debug, json = "--debug" in tokens, "--json" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    try:
        code = app(tokens, exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else Exit.DONE
    except CommandFailed as error:
        return fail(error.code, str(error), json)
    except cyclopts.CycloptsError as error:
        return fail(Exit.INVALID, flag_error(error), json)
    except BrokenPipeError:
        # The process that reads the output has ended, as in `sagda list | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if debug:
            raise
        if isinstance(error, BadValue | BadKind):
            return fail(Exit.INVALID, str(error), json)
        if isinstance(error, OSError):
            return fail(Exit.DISK, disk_error(error), json)
        message = (str(error) or type(error).__name__).splitlines()[0]
        kind = type(error).__name__
        message = f"unexpected {kind}: {message} (--debug shows the traceback)"
        return fail(Exit.FAILED, message, json)


def fail(code: int, message: str, json: bool) -> int:
    """Print an error message and return the exit code."""
    if json:
        print(json_module.dumps({"error": message, "exit_code": code}))
    print(f"sagda: {message}", file=sys.stderr)
    return code


def flag_error(error: cyclopts.CycloptsError) -> str:
    """Return one sentence for a wrong flag or a wrong value of a flag."""
    if isinstance(error.__cause__, ValidationError):
        return sentence(error.__cause__, Flags)
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."


def disk_error(error: OSError) -> str:
    """Return one sentence for a file that cannot be read or written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else (error.strerror or str(error))
    where = f" at {error.filename}" if error.filename else ""
    return f"{what}{where}; files that were written before are complete."


if __name__ == "__main__":
    sys.exit(main())
