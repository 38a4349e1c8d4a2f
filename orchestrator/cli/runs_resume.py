"""`nearfar runs resume`."""

from dataclasses import dataclass

from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NearfarError
from ..compose.config import Config
from ..hybrid.hybrid import Hybrid
from ..task.sections.runs import RunsConfig
from ..util.escaping import spelled_out
from ..util.threads import in_thread
from .approving import terminal_approver
from .console import EXIT_FAILED, execute, notes, output, print_json
from .options import Selection
from .run import summary
from .run_choice import RunChoice
from .selection import chosen_config, open_hybrid


@dataclass(frozen=True, slots=True)
class Answers:
    """What was said on the command line to calls that a run waits for, by the requests' ids."""

    approved: tuple[str, ...]
    denied: tuple[str, ...]

    def of(self) -> dict[str, bool]:
        """Raises `InvalidRequest` where one was approved and denied."""
        both = sorted(set(self.approved) & set(self.denied))
        if both:
            raise InvalidRequest(f"{both[0]} is both approved and denied", hint="say one of them")
        return {**dict.fromkeys(self.approved, True), **dict.fromkeys(self.denied, False)}


def resume_run(chosen: RunChoice, selection: Selection, answers: Answers, *, user: str, as_json: bool) -> None:
    """Go on with one run and print what came of it."""

    async def work() -> None:
        if chosen.run is None and not chosen.is_last:
            raise ConfigError("no run is named", hint="give the beginning of its id, --last, or --all for all whose process has died")
        async with _hybrid(selection, as_json=as_json) as hybrid:
            run = await in_thread(chosen.of, hybrid.runs)
            result = await hybrid.resume(run, user=user, approvals=answers.of())
        if as_json:
            print_json(result.model_dump(mode="json"))
            return
        output.print(Text(result.text), soft_wrap=True)
        notes.print(summary(result), style="dim", soft_wrap=True)

    execute(work(), as_json=as_json)


def resume_all(selection: Selection, chosen: RunChoice, *, as_json: bool) -> None:
    """Go on with all runs whose process has died, the oldest first; one that fails does not stop the others."""

    async def work() -> None:
        if chosen.run is not None or chosen.is_last:
            raise ConfigError("a run is named, and --all is given", hint="say one of them")
        ended: list[dict[str, str]] = []
        async with _hybrid(selection, as_json=as_json) as hybrid:
            for orphan in hybrid.runs.orphans():
                ended.append(await _outcome(hybrid, orphan.id, orphan.user))
                if not as_json:
                    notes.print(Text(spelled_out(f"{orphan.id}: {ended[-1].get('error', 'done')}")), soft_wrap=True)
        if as_json:
            print_json({"runs": ended})
        elif not ended:
            notes.print("no run was interrupted", style="dim")
        if any("error" in each for each in ended):
            raise SystemExit(EXIT_FAILED)

    execute(work(), as_json=as_json)


async def _outcome(hybrid: Hybrid, run: str, user: str) -> dict[str, str]:
    try:
        result = await hybrid.resume(run, user=user)
    except NearfarError as error:  # it is told, and the next one is gone on with
        return {"run": run, "error": f"{type(error).__name__}: {error}"}
    return {"run": run, "text": result.text}


def _hybrid(selection: Selection, *, as_json: bool) -> Hybrid:
    config: Config = chosen_config(selection)
    config = config.model_copy(update={"runs": config.runs or RunsConfig()})
    return open_hybrid(selection, config, None if as_json else terminal_approver())
