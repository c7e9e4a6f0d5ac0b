"""What a user sees of a training in Prefect's pages: the flow run's name, the run's page and those beside it."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Self

import httpx
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunSession, UploadStatus
from eigen_core.config import Config
from eigen_core.generation import TrainingState
from eigen_core.market import DataReport, Panel
from eigen_core.memory import MemoryGuard
from eigen_core.records import HoldoutResult, Telemetry
from eigen_core.reporting import (
    Course,
    Overview,
    champion_card,
    data_page,
    holdout_sentence,
    link_to_run,
    picture_markdown,
    plan_page,
    plots_markdown,
    population_table,
    readable,
    summary_page,
    uploads_page,
    uploads_sentence,
)
from eigen_core.reporting.overview import FITNESS_PLOT, SHOWN_GENERATIONS
from eigen_core.reporting.tables import Row
from eigen_core.units import exact_clock, size
from flows.goodput import Start, goodput
from flows.own_flow_run import describe_flow_run, flow_run_name, rename_flow_run
from flows.run_plan import RunPlan
from flows.server_presence import require_server
from tasks.artifacts import REFUSALS, Pages, artifact_key

# Generations whose time says how long the rest will take.
_RECENT = 5
_TASK_LOGGER = logging.getLogger("prefect.task_runs")


class Cockpit:
    """Tells Prefect's pages how one training goes; a context manager that tells them how it ended, too.

    Nothing in here stops a training: what the server does not take is logged. It holds texts and numbers, nothing of
    the training's state.

    Args:
        config: the run's.
        run: its name.
    """

    def __init__(self, config: Config, run: str) -> None:
        self._config = config
        self._run = run
        self._pages = Pages()
        self._first = 1
        self._began = self._now()
        self._stamps: deque[float] = deque(maxlen=_RECENT + 1)
        self._overview: Overview | None = None
        self._champion: Row = {}
        self._starts: Sequence[Start] = ()
        self._away = False
        self._closed = False
        self._holdout_is_left = config.market.holdout_days > 0

    def __enter__(self) -> Self:
        _TASK_LOGGER.addFilter(_says_more_than_completed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _TASK_LOGGER.removeFilter(_says_more_than_completed)
        if error is not None:
            self.ended(_reason(error))

    def chosen(self, generation: int) -> None:
        """Say which run is trained, from which generation on."""
        self._first = generation
        describe_flow_run(self._config, self._run, generation)

    def planned(self, run_plan: RunPlan) -> None:
        """Say what the run is planned to take of the memory, whether it fits or not."""
        page = plan_page(self._run, run_plan.sentence(), run_plan.plan.part_rows())
        self._tell(lambda: self._markdown("plan", page, f"Memory plan of run {self._run}"))

    def begun(
        self,
        state: TrainingState,
        session: RunSession,
        guard: MemoryGuard,
        panel: Panel,
        report: DataReport,
        starts: Sequence[Start],
    ) -> None:
        """Say that training begins, or goes on."""
        self._began = self._now()
        self._starts = starts
        self._stamps.append(time.monotonic())
        where = link_to_run(session.place.store.url, self._run)
        newest = session.place.local.newest_manifest() if state.generation else None
        written = None if newest is None else datetime.fromisoformat(newest.created)
        overview = Overview(self._run, self._course(state), where, checkpoint=written)
        self._overview = self._with_earlier_plots(overview, session.directory.plots)
        data = data_page(self._run, panel, report.lines())
        self._renew(state, session.uploads(), guard)
        self._tell(self._show_overview, lambda: self._markdown("data", data, f"Data of run {self._run}"))

    def generation_finished(self, state: TrainingState, session: RunSession, guard: MemoryGuard) -> None:
        """Say how the newest generation, which is in its checkpoint, went."""
        if self._overview is None:
            return
        self._stamps.append(time.monotonic())
        uploads = session.uploads()
        self._overview = replace(self._overview, checkpoint=self._now(), course=self._course(state))
        self._renew(state, uploads, guard)
        self._tell(
            lambda: rename_flow_run(
                flow_run_name(self._run, self._first, self._config.generations, done=state.generation)
            ),
            self._show_overview,
            lambda: self._show_population(state),
            self._show_progress,
            *self._uploads(uploads),
        )

    def plotted(self, generation: int, paths: Sequence[Path]) -> None:
        """Show the plots that were drawn after a generation."""
        if self._overview is None or not paths:
            return
        self._overview = self._with_plots(self._overview, f"drawn after generation {generation}", paths)
        self._tell(self._show_overview)

    def uploaded(self, session: RunSession) -> None:
        """Say how far the uploads are, at the end."""
        self._tell(*self._uploads(session.uploads()))

    def finished(
        self, state: TrainingState, session: RunSession, guard: MemoryGuard, result: HoldoutResult | None
    ) -> None:
        """Say that the run has all its generations, and how it ended."""
        if self._overview is None:
            return
        now = self._now()
        summary = summary_page(
            self._run, state.history, state.telemetry, result, link_to_run(session.place.store.url, self._run), now
        )
        self._holdout_is_left = False
        self._overview = replace(self._overview, course=self._course(state))
        self._renew(state, session.uploads(), guard)
        if result is not None:
            sentence = holdout_sentence(result)
            self._overview = replace(self._overview, notes=[("Holdout", sentence), *self._overview.notes])
        self._closed = True
        self._tell(
            self._show_overview,
            self._show_progress,
            lambda: self._markdown("summary", summary, f"Summary of run {self._run}"),
        )

    def ended(self, reason: str) -> None:
        """Say why the training ended before the run had all its generations."""
        if self._overview is None or self._closed:
            return
        course = replace(self._overview.course, now=self._now(), ended=f"{reason[:1].upper()}{reason[1:]}")
        self._overview = replace(self._overview, course=course)
        self._tell(self._show_overview, self._show_progress)

    def _renew(self, state: TrainingState, uploads: UploadStatus | None, guard: MemoryGuard) -> None:
        """Take over what the newest generation has shown."""
        assert self._overview is not None
        history = state.history[-2 * SHOWN_GENERATIONS :]
        telemetry = state.telemetry[-SHOWN_GENERATIONS:]
        sent = [] if uploads is None else [("Uploads", uploads_sentence(uploads))]
        self._overview = replace(
            self._overview,
            history=history,
            telemetry=telemetry,
            champion=self._card(state),
            notes=[*sent, *self._memory(guard, telemetry), *self._goodput()],
        )

    def _card(self, state: TrainingState) -> Row:
        """The champion's card. Its line, which goes back to the first generation, is followed once."""
        if not state.history:
            return {}
        newest = state.history[-1]
        who = f"agent {newest.champion_agent} of generation {newest.champion_generation}"
        if self._champion.get("champion") != who:
            self._champion = champion_card(state.history)
        age = newest.generation - newest.champion_generation
        return {**self._champion, "age (generations)": age}

    def _memory(self, guard: MemoryGuard, telemetry: Sequence[Telemetry]) -> list[tuple[str, str]]:
        """Say whether the memory suffices: what counts against the nearest limit, and what this training takes."""
        pressure, lines = guard.pressure(), self._config.memory
        judged = "fine" if pressure.share < lines.soft else f"tight, at {lines.hard:.0%} a phase is ended"
        facts = [("Memory", f"{judged}: {pressure} are taken")]
        if telemetry:
            last = telemetry[-1]
            highest = max(last.phases, key=lambda phase: phase.peak_bytes, default=None)
            where = "" if highest is None else f" (in {highest.phase})"
            took = f"{size(last.rss_bytes)} at the end of a generation, at most {size(last.rss_peak_bytes)}{where}"
            facts.append(("This training", took))
            if last.device_peak_bytes and guard.device_limit is not None:
                facts.append(("GPU", f"at most {size(last.device_peak_bytes)} of {guard.device_limit}"))
        return facts

    def _goodput(self) -> list[tuple[str, str]]:
        assert self._overview is not None
        found = goodput(self._starts, self._overview.checkpoint)
        return [] if found is None else [("Goodput", str(found).removeprefix("goodput "))]

    def _course(self, state: TrainingState) -> Course:
        generations = max(self._config.generations, state.generation)
        # All of a long history is looked through once, when it is shown.
        looked_at = state.telemetry if state.generation == generations else ()
        return Course(
            done=state.generation,
            generations=generations,
            now=self._now(),
            began=self._began,
            seconds_each=self._seconds_each(state),
            took=sum(entry.seconds for entry in looked_at),
            holdout_is_left=self._holdout_is_left,
        )

    def _seconds_each(self, state: TrainingState) -> float | None:
        """The time of a generation with all that comes with it; at the beginning, of those of an earlier process."""
        if len(self._stamps) > 1:
            return (self._stamps[-1] - self._stamps[0]) / (len(self._stamps) - 1)
        earlier = state.telemetry[-_RECENT:]
        return fmean(entry.seconds for entry in earlier) if earlier else None

    def _show_overview(self) -> None:
        assert self._overview is not None
        self._markdown("", self._overview.page(), self._overview.line())

    def _show_population(self, state: TrainingState) -> None:
        rows = readable(population_table(state.history[-2:]))
        title = f"Generation {state.generation}: the agents, the fittest first (run {self._run})"
        self._pages.show_table(artifact_key(self._run, "population"), rows, title)

    def _show_progress(self) -> None:
        assert self._overview is not None
        course = self._overview.course
        text = f"{course.line()} (run {self._run})"
        # The page cuts decimals off.
        percent = float(round(100.0 * course.share))
        self._pages.show_progress(artifact_key(self._run, "progress"), percent, text)

    def _uploads(self, status: UploadStatus | None) -> list[Callable[[], None]]:
        if status is None:
            return []
        return [lambda: self._markdown("uploads", uploads_page(status), f"Uploads of run {self._run}")]

    def _markdown(self, kind: str, page: str, description: str) -> None:
        self._pages.show_markdown(artifact_key(self._run, kind), page, description)

    def _with_earlier_plots(self, overview: Overview, folder: Path) -> Overview:
        """The page with the plots that an earlier process of the run has left on this machine."""
        paths = sorted(folder.glob("*.png"))
        if not paths:
            return overview
        drawn = datetime.fromtimestamp(paths[0].stat().st_mtime, UTC)
        return self._with_plots(overview, f"drawn before this process began, {exact_clock(drawn)}", paths)

    def _with_plots(self, overview: Overview, when: str, paths: Sequence[Path]) -> Overview:
        try:
            curve = "\n".join(picture_markdown(path) for path in paths if path.name == FITNESS_PLOT)
            others = plots_markdown([path for path in paths if path.name != FITNESS_PLOT], level=3)
        except OSError as error:
            get_run_logger().warning("The plots of run %s cannot be shown: %s", self._run, error)
            return overview
        return replace(overview, curve=curve, plots=f"## Plots, {when}\n\n{others}")

    def _tell(self, *pages: Callable[[], None]) -> None:
        """Show pages. What the server does not take is logged; that it is away is logged once."""
        for show in pages:
            try:
                require_server()
                self._away = False
                show()
            except REFUSALS as error:
                if not self._away:
                    get_run_logger().warning(
                        "The pages of run %s could not be renewed: %s: %s", self._run, type(error).__name__, error
                    )
                self._away = isinstance(error, httpx.ConnectError)
                if self._away:
                    return

    @staticmethod
    def _now() -> datetime:
        return datetime.now(UTC)


def _reason(error: BaseException) -> str:
    """Why a training ended, as a sentence."""
    if isinstance(error, TerminationSignal | KeyboardInterrupt):
        return "It was told to stop."
    return f"{type(error).__name__}: {error}".rstrip(": .") + "."


def _says_more_than_completed(record: logging.LogRecord) -> bool:
    """Whether a line of a task's log is more than Prefect's "Finished in state Completed()", after each phase's own."""
    return not record.getMessage().startswith("Finished in state Completed")
