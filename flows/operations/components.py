"""What `eigen up` starts."""

from typing import Literal

Component = Literal["server", "worker"]
COMPONENTS: tuple[Component, ...] = ("server", "worker")
