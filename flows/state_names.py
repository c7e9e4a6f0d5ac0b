"""The names of the states in which a training's flow run ends early, or without anything to do."""

FINISHED_NAME = "AlreadyFinished"
RUNNING_NAME = "AlreadyRunning"
NOTHING_NAME = "NothingToDo"
SUSPENDED_NAME = "StillSuspended"
GUARD_NAME = "MemoryGuard"
PLAN_NAME = "MemoryPlan"
BLOCKED_NAME = "Blocked"
