"""``vicinal``: the table of commands, and what becomes of an error.

Exit codes: 0 fine, 1 a gate failed, 2 bad input, a disk that refuses or an error in the user's own
code, and nothing written, 3 an error of ours, 130 interrupted, 143 ended from outside (the same
command goes on).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import typer

import vicinal
from vicinal.cli.flags import Grouped, command
from vicinal.cli.verbs import VERBS

NEWCOMER = """vicinal — know a model by its neighborhoods

  vicinal demo                              see a whole report on bundled digits, offline
  vicinal audit train.npz test.npz          how far to trust predictions, which labels look wrong
  vicinal embed model.py:make data/         embeddings of your own model, resumable
  vicinal fit train.npz -o trust.vic        a head to keep; then: vicinal predict trust.vic new.npz
  vicinal compare runs/a runs/b             paired comparison, with gates for CI
  vicinal COMMAND --help                    options and examples"""

app = typer.Typer(
    name="vicinal",
    help="Know a model by its neighborhoods: how far each prediction may be trusted, and why.",
    epilog="\b\n" + NEWCOMER.partition("\n\n")[2],
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb, _options in VERBS.items():
    app.command(
        name=_verb,
        cls=type(_verb, (Grouped,), {"kind": _options}),
        help=_options.__doc__,
        epilog=f"Examples:\n\n{_options.EXAMPLE}",
    )(command(_verb, _options))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vicinal {vicinal.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and stop."
    ),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(NEWCOMER)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    # Read when torch is loaded: idle threads look a few thousand times for work, then sleep. On a
    # shared machine looking without end makes minutes of seconds; alone, sleep at once costs half.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what it doubts, it then refuses
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    try:
        result = app(args=None if argv is None else list(argv), standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except typer.Exit as stop:
        code = int(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # who read our output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for what is still in the buffer
        return 0
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or _sentence(error) is not None:
            return _report(error)
        code = 143  # Ray makes an exit of the signal; nothing of ours leaves by this door
    if code in (130, 143):
        typer.echo("\ninterrupted. Run the same command again to continue.", err=True)
    return code


def _report(error: BaseException) -> int:
    """Bad input is a sentence and exit code 2; anything else is ours, its traceback in a log."""
    from vicinal.cli.console import printable  # late: help needs none of this

    sentence = _sentence(error)
    if sentence is not None:
        typer.echo(f"error: {' '.join(printable(sentence).split())}", err=True)
        return 2
    log: Path | None = Path("vicinal-error.log")
    try:
        text = "".join(traceback.format_exception(error))
        Path("vicinal-error.log").write_text(text, "utf-8", "replace")
    except OSError:
        log = None
    where = f"The traceback is in {log}." if log else "No log of it could be written here."
    typer.echo(
        f"internal error: {type(error).__name__}: {printable(str(error))}\n"
        f"This is a fault of vicinal, not yours. {where}",
        err=True,
    )
    return 3


def _sentence(error: BaseException) -> str | None:
    """What to say of an error that is not ours; None: it is."""
    if hasattr(error, "format_message"):  # the parser's own: an unknown option, a bad value
        said, kind, context = str(error.format_message()), type(error).__name__, vars(error)["ctx"]
        said += "" if said.endswith((".", "?")) else "."
        if kind in ("MissingParameter", "UsageError") and context.parent:
            return f"{said} For example: {context.command.epilog.splitlines()[2]}"
        unknown = kind in ("NoSuchOption", "NoSuchCommand", "UsageError")
        return f"{said} All of them: {context.command_path} --help" if unknown else said
    if isinstance(error, vicinal.InputError):
        return str(error)
    from vicinal.cli.user_code import described, is_theirs
    from vicinal.files import reason

    if is_theirs(error):
        return f"your code failed: {described(error)}."
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Give fewer rows."
    if isinstance(error, OSError):
        what = f" {error.filename}" if error.filename else ""
        return f"the system refused{what}: {reason(error)}."
    return None


def entry() -> None:
    asked: list[int] = []

    def end(number: int, _: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt  # not SystemExit, which the user's own code may raise

    signal.signal(signal.SIGTERM, end)
    code = main()
    sys.exit(143 if asked and code == 130 else code)


if __name__ == "__main__":
    entry()
