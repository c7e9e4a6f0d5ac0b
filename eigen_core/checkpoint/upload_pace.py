"""How fast uploads are, how fast they may be, and how long they wait after a failure."""

from collections.abc import Callable

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FIRST_REFUSED_PAUSE, _LONGEST_REFUSED_PAUSE = 30.0, 300.0
_HURRIED_PAUSE = 5.0


class UploadPace:
    """Measures uploads and keeps them below a rate, on average from any moment on; unused time is not saved up.

    Attributes:
        bytes: what was moved since the last upload began.
        mb_per_second: rate of the last upload that moved something; 0 before any did (MB/s).
    """

    def __init__(self, limit: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        """
        Args:
            limit: the highest rate (MB/s); 0: none.
            clock: rising seconds.
            sleep: waits so many seconds.
        """
        self._limit = limit * 1e6
        self._clock = clock
        self._sleep = sleep
        self._free = self._started = clock()
        self.bytes = 0
        self.mb_per_second = 0.0

    def begin(self) -> None:
        """Note that a new upload begins."""
        self._started = self._clock()
        self.bytes = 0

    def moved(self, count: int) -> None:
        """Note that `count` further bytes were moved, and wait until that is within the rate."""
        now = self._clock()
        self.bytes += count
        if now > self._started:
            self.mb_per_second = self.bytes / (now - self._started) / 1e6
        if self._limit > 0:
            self._free = max(self._free, now) + count / self._limit
            if self._free > now:
                self._sleep(self._free - now)


def pause_after(failures: int, *, refused: bool, hurried: bool) -> float:
    """Return for how long to wait before the next attempt (seconds).

    Args:
        failures: attempts that have failed before the last one, since one succeeded.
        refused: the store says that waiting will not help; a user may still correct that.
        hurried: a caller waits for it.
    """
    first, longest = (_FIRST_REFUSED_PAUSE, _LONGEST_REFUSED_PAUSE) if refused else (_FIRST_PAUSE, _LONGEST_PAUSE)
    return min(first * 2.0 ** min(failures, 16), _HURRIED_PAUSE if hurried else longest)
