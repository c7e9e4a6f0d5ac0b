"""The plots of a training, drawn beside its next generation."""

from typing import TYPE_CHECKING

from prefect.logging import get_run_logger

from eigen_core.memory import MemoryGuardError
from eigen_core.reporting.drawing import Drawing
from tasks.phases import plot

if TYPE_CHECKING:
    from flows.training import Training


class Plotting:
    """Draws the plots of one training in a process of its own, and takes them over once they are drawn.

    A picture that cannot be drawn is a warning and a failed task; it does not stop a training.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._drawing: Drawing | None = None
        self._next: Drawing | None = None

    def prepare(self, training: "Training", generation: int) -> None:
        """Start the process that will draw after `generation`; the plots before are taken over first."""
        self.take_over(training)
        try:
            self._next = Drawing()
        except OSError as error:
            _warn(generation, str(error))

    def begin(self, training: "Training", generation: int) -> None:
        """Begin to draw what the run has until `generation`, which was prepared."""
        if self._next is None:
            return
        self._drawing, self._next, self._generation = self._next, None, generation
        state = training.state
        self._drawing.begin(state.history, state.telemetry, state.learner.curves)

    def take_over_if_drawn(self, training: "Training") -> None:
        """Take the plots over, unless that would have to be waited for."""
        if self._drawing is not None and self._drawing.is_done():
            self.take_over(training)

    def take_over(self, training: "Training") -> None:
        """Wait for the plots that are being drawn, if any are, and keep them in the run.

        Raises:
            MemoryGuardError: there is not enough memory.
        """
        if self._drawing is None:
            return
        generation = self._generation
        training.send(lambda listener: listener.phase_started(generation, "plot"))
        try:
            ended = plot(self._drawing, training.session, training.guard, generation, return_state=True)
        finally:
            self._drawing.stop()
            self._drawing = None
        if ended.is_completed():
            paths = ended.result()
            training.send(lambda listener: listener.plotted(generation, paths))
            return
        error = ended.result(raise_on_failure=False)
        if isinstance(error, MemoryGuardError):
            raise error
        _warn(generation, str(ended.message))

    def stop(self) -> None:
        """Draw nothing more."""
        for drawing in (self._drawing, self._next):
            if drawing is not None:
                drawing.stop()
        self._drawing = self._next = None


def _warn(generation: int, reason: str) -> None:
    get_run_logger().warning("generation %d has no new plots: %s", generation, reason)
