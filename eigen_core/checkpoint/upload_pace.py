"""How fast uploads are, how fast they may be, and how long they wait after a failure."""

from collections.abc import Callable

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FIRST_REFUSED_PAUSE, _LONGEST_REFUSED_PAUSE = 30.0, 300.0
_HURRIED_PAUSE = 5.0


class RateLimit:
    """Keeps a stream of bytes below a rate, on average from any moment on; what was not used is not saved up."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        """
        Args:
            bytes_per_second: the rate; 0: no limit.
            clock: rising seconds.
            sleep: waits so many seconds.
        """
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free = clock()

    def spend(self, count: int) -> None:
        """Wait until `count` bytes that were just moved fit the rate."""
        if self._rate <= 0:
            return
        now = self._clock()
        self._free = max(self._free, now) + count / self._rate
        if self._free > now:
            self._sleep(self._free - now)


class Speedometer:
    """The rate of the last upload that moved something."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._bytes = 0
        self._rate = 0.0

    def begin(self) -> None:
        """A new upload begins."""
        self._started = self._clock()
        self._bytes = 0

    def moved(self, count: int) -> None:
        """`count` further bytes were moved."""
        self._bytes += count
        seconds = self._clock() - self._started
        if seconds > 0:
            self._rate = self._bytes / seconds

    @property
    def bytes(self) -> int:
        """What was moved since the last upload began."""
        return self._bytes

    @property
    def mb_per_second(self) -> float:
        """Of the last upload that moved something; 0 before any did (MB/s)."""
        return self._rate / 1e6


def pause_after(failures: int, *, refused: bool, hurried: bool) -> float:
    """Return for how long to wait before the next attempt (seconds).

    Args:
        failures: attempts that have failed before the last one, since one succeeded.
        refused: the store says that waiting will not help; a user may still correct that.
        hurried: a caller waits for it.
    """
    first, longest = (_FIRST_REFUSED_PAUSE, _LONGEST_REFUSED_PAUSE) if refused else (_FIRST_PAUSE, _LONGEST_PAUSE)
    return min(first * 2.0 ** min(failures, 16), _HURRIED_PAUSE if hurried else longest)
