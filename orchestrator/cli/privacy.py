"""The `nearfar privacy` group. As in the package itself, each command loads what it needs when it runs."""

import typer

from . import options

privacy = typer.Typer(help="What left this device, and what was held back.", no_args_is_help=True)


@privacy.command("audit")
def audit_run(
    run: options.RunName = None,
    last: options.Last = False,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what left the device for a run, when, to whom and why it was allowed, and what was held back; without a word of it."""
    from .privacy_audit import audit_run as audit
    from .run_choice import RunChoice

    audit(RunChoice(run, last), config, as_json=as_json)
