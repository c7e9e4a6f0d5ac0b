"""A store in this process's memory that can be away, refuse, lose replies and be watched."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from eigen_core.checkpoint.store import MissingObjectError, Progress, StoredObject, StoreUnavailableError

START = datetime(2020, 1, 1, tzinfo=UTC)
CHUNK = 8 << 20


class MemoryStore:
    """A `Store` whose clock stands still until it is moved.

    Attributes:
        away: every operation raises `StoreUnavailableError`.
        refusal: if set, every operation that writes raises it.
        lost_replies: number of the next writes that are done, but raise `StoreUnavailableError`.
        before: called with each operation's name and its object's, before it.
    """

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.modified: dict[str, datetime] = {}
        self.now = START
        self.away = False
        self.refusal: Exception | None = None
        self.lost_replies = 0
        self.before: Callable[[str, str], None] | None = None
        self.done: list[tuple[str, str]] = []
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        return "memory://bucket"

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def written(self, operation: str) -> list[str]:
        return [name for done, name in self.done if done == operation]

    def time(self) -> datetime:
        self._ask("time", "")
        return self.now

    def check(self) -> None:
        self._ask("check", "")

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        self._ask("put_file", name, writes=True)
        content = path.read_bytes()
        for start in range(0, len(content), CHUNK):
            self._ask("chunk", name, writes=True)
            if moved is not None:
                moved(len(content[start : start + CHUNK]))
        self._store(name, content)

    def put(self, name: str, content: bytes) -> None:
        self._ask("put", name, writes=True)
        self._store(name, content)

    def create(self, name: str, content: bytes) -> bool:
        self._ask("create", name, writes=True)
        with self._lock:
            if name not in self.content:
                # A reply that is lost here is that of a request which is tried again.
                with suppress(StoreUnavailableError):
                    self._store(name, content)
            return self.content[name] == content

    def read(self, name: str, limit: int) -> bytes:
        self._ask("read", name)
        if name not in self.content:
            raise MissingObjectError(name)
        if len(self.content[name]) > limit:
            raise StoreUnavailableError(f"{name} is longer than {limit}")
        return self.content[name]

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        content = self.read(name, 1 << 40)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if moved is not None:
            moved(len(content))

    def holds(self, name: str, path: Path) -> bool:
        self._ask("holds", name)
        return self.content.get(name) == path.read_bytes()

    def stat(self, name: str) -> StoredObject | None:
        self._ask("stat", name)
        return self._known(name) if name in self.content else None

    def objects(self, prefix: str) -> list[StoredObject]:
        self._ask("objects", prefix)
        with self._lock:
            return [self._known(name) for name in sorted(self.content) if name.startswith(prefix)]

    def folders(self, prefix: str) -> list[str]:
        self._ask("folders", prefix)
        rests = [name.removeprefix(prefix) for name in self.content if name.startswith(prefix)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._ask("delete", name, writes=True)
            self.content.pop(name, None)
            self.modified.pop(name, None)

    def _known(self, name: str) -> StoredObject:
        return StoredObject(name, len(self.content[name]), self.modified[name])

    def _ask(self, operation: str, name: str, *, writes: bool = False) -> None:
        if self.before is not None:
            self.before(operation, name)
        if self.away:
            raise StoreUnavailableError("the store is away")
        if writes and self.refusal is not None:
            raise self.refusal
        self.done.append((operation, name))

    def _store(self, name: str, content: bytes) -> None:
        with self._lock:
            self.content[name] = content
            self.modified[name] = self.now
            if self.lost_replies > 0:
                self.lost_replies -= 1
                raise StoreUnavailableError("the reply was lost")


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
