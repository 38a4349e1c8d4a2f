"""The `nearfar` command. Only typer is imported here: each command loads what it needs when it runs."""

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from . import options
from .budget import budget
from .cache import cache
from .memory import memory
from .memory_sleep import sleep
from .models import models
from .prices import prices
from .privacy import privacy
from .runs import runs
from .token import token
from .trace import trace
from .worker import worker

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions


class JsonGroup(TyperGroup):
    """Reports a mistake on the command line as JSON too, where `--json` stands there."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - fewer parameters by position than the base class
        arguments = list(sys.argv[1:] if args is None else args)
        if "--json" not in arguments or not standalone_mode:
            return super().main(arguments, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(arguments, standalone_mode=False, **extra)
        except Exception as error:
            describe = getattr(error, "format_message", None)  # what typer raises for a mistake has no public base class
            if describe is None:
                raise
            from .console import fail_usage

            fail_usage(describe())
        raise SystemExit(code or 0)


app = typer.Typer(
    name="nearfar",
    cls=JsonGroup,
    help="Agents that run on this device and ask the cloud only when it pays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve = typer.Typer(help="Serve agents to other processes and machines over gRPC.", no_args_is_help=True)
serve.add_typer(token, name="token")
app.add_typer(serve, name="serve")
app.add_typer(budget, name="budget")
app.add_typer(cache, name="cache")
app.add_typer(models, name="models")
app.add_typer(prices, name="prices")
app.add_typer(privacy, name="privacy")
app.add_typer(runs, name="runs")
app.add_typer(trace, name="trace")
app.add_typer(worker, name="worker")
memory.add_typer(sleep, name="sleep")
app.add_typer(memory, name="memory")

policy = typer.Typer(help="Check, explain, calibrate and simulate a policy.", no_args_is_help=True)
app.add_typer(policy, name="policy")
router = typer.Typer(help="Train the router on recorded outcomes.", no_args_is_help=True)
app.add_typer(router, name="router")

auto = typer.Typer(help="What the strategy auto chooses, and why.", no_args_is_help=True)
app.add_typer(auto, name="auto")


def _task_text(prompt: str, *, as_json: bool) -> str:
    """Return the task; `-` reads it from standard input. Text that is not UTF-8 is reported."""
    from ...protocols import InvalidRequest
    from .console import reported

    with reported(as_json=as_json):
        try:
            text = sys.stdin.read() if prompt == "-" else prompt
            text.encode()
        except UnicodeError as error:
            raise InvalidRequest("the task is not text in UTF-8", hint="convert it first") from error
        return text


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nearfar {version('nearfar')}")
        raise typer.Exit


@app.callback()
def nearfar(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Agents that run on this device and ask the cloud only when it pays."""


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="The task. `-` reads it from standard input.")],
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    context: Annotated[Path | None, typer.Option(help="Text file that the task is about; `minions` keeps it on this device.")] = None,
    schema: Annotated[Path | None, typer.Option(help="JSON Schema file that the answer must be valid against.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds for the whole task.")] = None,
    task_class: options.TaskClass = "",
    tag: options.Tags = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one task and print the answer, who gave it and what it cost."""
    from .run import run_task

    selection = options.Selection(config, near, far, strategy, mode, public, tools)
    files = options.Files(context=context, schema=schema)
    known: TaskOptions = {"timeout": timeout, "task_class": task_class, "tags": tag or ()}
    run_task(_task_text(prompt, as_json=as_json), selection, files, known, as_json=as_json)


@app.command()
def chat(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
) -> None:
    """Talk to the agents, turn by turn."""
    from .run import chat_with

    chat_with(options.Selection(config, near, far, strategy, mode, public, tools))


@app.command()
def demo(
    tasks: Annotated[int, typer.Option(min=1, help="Unseen tasks per strategy.")] = 120,
    seed: Annotated[int, typer.Option(help="Of the world that the tasks are drawn from.")] = 2026,
    report: Annotated[Path, typer.Option(help="Where the HTML report is written.")] = Path("report.html"),
    as_json: options.AsJson = False,
) -> None:
    """Solve unseen tasks on the device, in the cloud and with a cascade, offline, and compare them."""
    from .demo import run_demo

    run_demo(tasks=tasks, seed=seed, report=report, as_json=as_json)


@app.command()
def sweep(
    study: Annotated[Path | None, typer.Argument(help="Study file (TOML); options given here stand in place of its keys.")] = None,
    world: Annotated[list[str] | None, typer.Option(help="search, apps, or package.module:factory; may be repeated.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks drawn from each world with each seed.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, from 1 on.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="Configuration such as pevr/8 or eva:triggers=loop+stall; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report; a sweep that was stopped goes on from there.")] = Path(
        "sweep"
    ),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes, each with its own agents.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Runs at the same time in each process.")] = None,
    ceiling: Annotated[float | None, typer.Option(min=0, help="US dollars at which no further run is started; exit code 3.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Make the runs on Ray instead of processes on this machine.")] = False,
    agents: Annotated[str | None, typer.Option(help="package.module:factory that makes the near and the far agent.")] = None,
    public: options.Public = False,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    as_json: options.AsJson = False,
) -> None:
    """Run configurations on worlds of tasks, with error bars, and report what each reaches at which cost."""
    from .sweep import Wanted, run_sweep

    named: dict[str, object] = {"worlds": world, "tasks": tasks, "seeds": seeds, "runs": run, "jobs": jobs, "concurrency": concurrency}
    named |= {"ceiling": ceiling, "agents": agents, "public": public or None}
    given = {name: value for name, value in named.items() if value is not None}
    selection = options.Selection(config, near, far, strategy=None, mode=None, public=False, tools=None)
    run_sweep(Wanted(study, given, out, ray), selection, as_json=as_json)


@app.command()
def doctor(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Say what is installed, what this machine has, what works, and what to do about the rest."""
    from .doctor import run_doctor

    run_doctor(config=config, as_json=as_json)


@auto.command("explain")
def explain_auto(
    prompt: Annotated[str, typer.Argument(help="The task. `-` reads it from standard input.")],
    outcomes: Annotated[Path | None, typer.Option(help="Runs of a sweep to learn from, in place of [policy.auto] outcomes.")] = None,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    as_json: options.AsJson = False,
) -> None:
    """Print which configuration auto would serve a task with, and what it expects of each; nothing is run."""
    from .auto import explain_choice

    selection = options.Selection(config, near, far, None, mode, public, tools)
    explain_choice(_task_text(prompt, as_json=as_json), selection, outcomes=outcomes, as_json=as_json)


@policy.command("check")
def check_policy(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Say what is wrong or strange about a policy: rules that never match, sides that contradict each other, unknown agents."""
    from .policy import check_policy as check

    check(config, as_json=as_json)


@policy.command("schema")
def policy_schema() -> None:
    """Print the JSON Schema of nearfar.toml, for editors."""
    from .policy import print_schema

    print_schema()


@policy.command("explain")
def explain_policy(
    prompt: Annotated[str, typer.Argument(help="The task. `-` reads it from standard input.")],
    run: Annotated[bool, typer.Option("--run", help="Serve the task too, and print what really happened.")] = False,
    task_class: options.TaskClass = "",
    tag: options.Tags = None,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    as_json: options.AsJson = False,
) -> None:
    """Print who would serve a task: the candidates, who was left out and why, what is expected of each, and the decision."""
    from .policy import explain_route

    selection = options.Selection(config, near, far, strategy, mode, public, tools)
    task = _task_text(prompt, as_json=as_json)
    explain_route(task, selection, {"task_class": task_class, "tags": tag or ()}, run=run, as_json=as_json)


@policy.command("simulate")
def simulate_policy(
    traces: options.Traces,
    out: Annotated[Path, typer.Option(help="Folder of the page and its pictures.")] = Path("simulation"),
    far_share: Annotated[float | None, typer.Option(min=0.001, max=0.999, help="Hold this share of far tasks over the stream.")] = None,
    near_agent: options.NearAgents = None,
    far_agent: options.FarAgents = None,
    words_only: options.WordsOnly = False,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay recorded outcomes through the router: score against far share and dollars, beside random, each agent and an oracle."""
    from .replay import simulate_policy as simulate
    from .traces import Recorded

    recorded = Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    simulate(recorded, far_share=far_share, out=out, as_json=as_json)


@policy.command("calibrate")
def calibrate_policy(
    traces: options.Traces,
    budget: Annotated[str | None, typer.Option(help="What may go far: 0.3 or 30% of the tasks, or $0.002 per task.")] = None,
    quality: Annotated[str | None, typer.Option(help="What has to be kept: 95% of the far side's score, or a score such as 0.82.")] = None,
    near_agent: options.NearAgents = None,
    far_agent: options.FarAgents = None,
    words_only: options.WordsOnly = False,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the router's threshold for a budget or a quality, and report what it gives on tasks that it was not chosen on."""
    from .replay import calibrate_policy as calibrate
    from .traces import Recorded

    recorded = Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    calibrate(recorded, budget=budget, quality=quality, as_json=as_json)


@router.command("train")
def train_router(
    traces: options.Traces,
    out: Annotated[Path, typer.Option(help="Folder of the head.")] = Path("head"),
    near_agent: options.NearAgents = None,
    far_agent: options.FarAgents = None,
    words_only: options.WordsOnly = False,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Train the router's head on recorded outcomes, and report what it is worth on prompts that it has not seen."""
    from .traces import Recorded
    from .train_router import train_router as train

    train(Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed), out, as_json=as_json)


@serve.command("gateway")
def serve_gateway(
    config: options.Config = None,
    far: options.Far = None,
    address: options.Address = "127.0.0.1:7443",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: options.TokenFile = None,
    insecure: options.Insecure = False,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Serve the far agent: this process holds the provider's key, its callers only a token."""
    from .serve import run_gateway

    run_gateway(config, far, options.Listening(address, certificate, key, tokens, insecure, client_authority), drain=drain, as_json=as_json)


@serve.command("agent")
def serve_agent(
    config: options.Config = None,
    near: options.Near = None,
    address: options.Address = "127.0.0.1:7444",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: options.TokenFile = None,
    insecure: options.Insecure = False,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Serve this machine's near agent to other processes."""
    from .serve import run_agent

    run_agent(config, near, options.Listening(address, certificate, key, tokens, insecure, client_authority), drain=drain, as_json=as_json)


@serve.command("hub")
def serve_hub(
    config: options.Config = None,
    address: Annotated[str, typer.Option(help="HOST:PORT at which devices reach the hub, in place of [hub] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: Annotated[Path | None, typer.Option(help="File with a token for each worker, in place of [hub] tokens.")] = None,
    insecure: options.Insecure = False,
    as_json: options.AsJson = False,
) -> None:
    """Accept devices that dial out to lend their models, and offer them to the tasks on this machine."""
    from .attach import run_hub

    run_hub(config, options.Listening(address, certificate, key, tokens, insecure, client_authority), as_json=as_json)


def _open_closed_streams() -> None:
    """Let reading end at once, and what is printed be lost, where a service manager has closed a standard stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process


def main() -> None:
    """Entry point of the `nearfar` command."""
    _open_closed_streams()
    gc.disable()  # until `collect_garbage`
    app()
