"""The pages (artifacts) of a training run on Prefect's server: overview, data, memory plan and memory report."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger

from eigen_core.common.records import HoldoutResult, Telemetry
from eigen_core.common.text import exact_clock, percent, size
from eigen_core.config import Config
from eigen_core.machine.memory_guard import MemoryGuard
from eigen_core.machine.memory_report import MemoryReport, report_markdown
from eigen_core.planning.run_plan import RunPlan
from eigen_core.reporting import tables
from eigen_core.reporting.health import learning_sentences
from eigen_core.runs.listener import Listener, Training
from flows.server.artifacts import Artifacts, Reporter, artifact_key, client_or_warning, server_is_there

# The time left is estimated from this many newest generations.
_RECENT = 5
_TASK_LOGGER = logging.getLogger("prefect.task_runs")


class RunPages(Listener):
    """Listener that shows a training, and how it ended, in Prefect's pages; keeps no reference to training state."""

    def __init__(self, config: Config, run: str, reporter: Reporter) -> None:
        self._config = config
        self._run = run
        self._reporter = reporter
        self._pages = Artifacts()
        self._overview: tables.Overview | None = None
        self._began = datetime.now(UTC)

    def __enter__(self) -> Self:
        _TASK_LOGGER.addFilter(_says_more_than_completed)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _TASK_LOGGER.removeFilter(_says_more_than_completed)
        if error is not None:
            self.ended(_reason(error))

    def show_plan(self, run_plan: RunPlan) -> None:
        page = tables.plan_page(self._run, run_plan.sentence(), [part.row() for part in run_plan.parts])
        self._markdown("plan", lambda: page, f"Memory plan of run {self._run}")

    def begun(self, training: Training) -> None:
        self._began = datetime.now(UTC)
        session, state = training.session, training.state
        newest = session.location.local.newest_manifest() if state.generation else None
        written = None if newest is None else datetime.fromisoformat(newest.created)
        link = tables.link_to_run(session.location.store.url, self._run)
        self._overview = tables.Overview(self._run, self._progress(training), link, checkpoint=written)
        plots = {}
        if earlier := sorted(session.directory.plots.glob("*.png")):
            # A process that trained the run before has left these plots on this machine.
            drawn = datetime.fromtimestamp(earlier[0].stat().st_mtime, UTC)
            plots = self._plots(f"drawn before this process began, {exact_clock(drawn)}", earlier)
        held = training.data
        data = tables.data_page(self._run, held.size, held.lines, held.parts)
        self._show_overview(**self._news(training), **plots)
        self._markdown("data", lambda: data, f"Data of run {self._run}")
        self.show_plan(training.plan)

    def checkpointed(self, training: Training) -> None:
        self._show_overview(**self._news(training), checkpoint=datetime.now(UTC))

    def plotted(self, generation: int, paths: Sequence[Path]) -> None:
        if paths:
            self._show_overview(**self._plots(f"drawn after generation {generation}", paths))

    def completed(self, training: Training, result: HoldoutResult | None) -> None:
        news = self._news(training, is_complete=True)
        trend = " ".join(learning_sentences(training.state.history))
        results = [("Holdout", tables.holdout_sentence(result))] if result is not None else []
        news["notes"] = [*results, *([("Trend", trend)] if trend else []), *news["notes"]]
        self._show_overview(**news)
        # An error after this must not show the complete run as ended early.
        self._overview = None

    def ended(self, reason: str) -> None:
        """Show on the overview why the training ended before the run was complete; `reason` is a sentence."""
        if self._overview is not None:
            ended = f"{reason[:1].upper()}{reason[1:]}"
            self._show_overview(progress=replace(self._overview.progress, now=datetime.now(UTC), ended=ended))

    def memory_reported(self, report: MemoryReport) -> None:
        """Show a memory report at once, not by the reporter's thread: the training may be about to end."""
        if server_is_there():
            with client_or_warning("Prefect has no page of the memory report", get_run_logger()):
                description = f"Memory of run {self._run}: {report.headline}"
                Artifacts().show(artifact_key(self._run, "memory"), report_markdown(report), description)

    def _news(self, training: Training, *, is_complete: bool = False) -> dict[str, Any]:
        """Return those fields of the overview that change in a training."""
        state, uploads = training.state, training.session.uploads()
        telemetry = state.telemetry[-tables.SHOWN_GENERATIONS :]
        sent = [] if uploads is None else [("Uploads", str(uploads))]
        return {
            "progress": self._progress(training, is_complete=is_complete),
            "history": state.history[-tables.SHOWN_GENERATIONS :],
            "telemetry": telemetry,
            "champion": tables.champion_card(state.history) if state.history else {},
            "notes": [*sent, *self._memory(training.guard, telemetry)],
        }

    def _memory(self, guard: MemoryGuard, telemetry: Sequence[Telemetry]) -> list[tuple[str, str]]:
        pressure, lines = guard.pressure(), self._config.memory
        verdict = (
            "fine" if pressure.share < lines.soft else f"tight (the memory guard aborts at {percent(lines.hard, 0)})"
        )
        facts = [("Memory", f"{verdict}: {pressure} are taken")]
        if telemetry:
            last = telemetry[-1]
            highest = max(last.phases, key=lambda phase: phase.peak_bytes, default=None)
            where = "" if highest is None else f" (in {highest.phase})"
            took = f"{size(last.rss_bytes)} at the end of a generation, at most {size(last.rss_peak_bytes)}{where}"
            facts.append(("Training processes", took))
            if last.device_peak_bytes and guard.device_limit is not None:
                facts.append(("GPU", f"at most {size(last.device_peak_bytes)} of {guard.device_limit}"))
        return facts

    def _progress(self, training: Training, *, is_complete: bool = False) -> tables.Progress:
        state = training.state
        generations = max(self._config.generations, state.generation)
        # A long history is summed only once: when the last generation is done, whose page shows the total time.
        looked_at = state.telemetry if state.generation == generations else ()
        recent = state.telemetry[-_RECENT:]
        return tables.Progress(
            done=state.generation,
            generations=generations,
            now=datetime.now(UTC),
            began=self._began,
            seconds_each=fmean(entry.seconds for entry in recent) if recent else None,
            took=sum(entry.seconds for entry in looked_at),
            holdout_is_left=self._config.has_holdout and not is_complete,
        )

    def _show_overview(self, **changes: Any) -> None:  # noqa: ANN401 - its fields
        """Change the overview, if there is one, and let the reporter send it."""
        if self._overview is not None:
            self._overview = overview = replace(self._overview, **changes)
            self._markdown("", overview.page, overview.line())

    def _markdown(self, kind: str, page: Callable[[], str], description: str) -> None:
        """Let the reporter send the artifact of this kind; its thread calls `page` for the markdown text."""
        key = artifact_key(self._run, kind)
        self._reporter.report(kind, lambda: self._pages.show(key, page(), description))

    def _plots(self, when: str, paths: Sequence[Path]) -> dict[str, str]:
        try:
            pictures = {path.stem: tables.picture_markdown(path) for path in paths}
        except OSError as error:
            get_run_logger().warning("The plots of run %s cannot be shown: %s", self._run, error)
            return {}
        curve = pictures.pop(Path(tables.FITNESS_PLOT).stem, "")
        others = [f"### {name.capitalize()}\n\n{picture}\n" for name, picture in pictures.items()]
        return {"curve": curve, "plots": "\n".join([f"## Plots, {when}\n", *others])}


def _reason(error: BaseException) -> str:
    if isinstance(error, TerminationSignal | KeyboardInterrupt):
        return "It was stopped."
    return f"{type(error).__name__}: {error}".rstrip(": .") + "."


def _says_more_than_completed(record: logging.LogRecord) -> bool:
    """Return false for Prefect's log line "Finished in state Completed()": Eigen's own line on a phase says more."""
    return not record.getMessage().startswith("Finished in state Completed")
