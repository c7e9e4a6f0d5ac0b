"""The command `eigen doctor`: what it has found, line by line."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flows.doctor import Finding, Status

_STYLES: dict[Status, str] = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_CHECK_WIDTH = 15


def print_findings(console: Console, findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as it comes, then how many were bad, and return them."""
    printed = []
    for finding in findings:
        label = Text(f"{finding.status:<9}", style=_STYLES[finding.status])
        console.print(label + Text(f"{finding.check:<{_CHECK_WIDTH}}{finding.found}", style=""), soft_wrap=True)
        if finding.advice:
            console.print(Text(f"{'':<9}{'':<{_CHECK_WIDTH}}{finding.advice}"), soft_wrap=True)
        printed.append(finding)
    failed = sum(finding.status == "failed" for finding in printed)
    warnings = sum(finding.status == "warning" for finding in printed)
    if failed or warnings:
        console.print(f"{failed} failed, {warnings} with a warning, of {len(printed)} checks.", highlight=False)
    else:
        console.print(f"All {len(printed)} checks are well: train with `eigen train`.", highlight=False)
    return printed


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed."""
    return all(finding.status != "failed" for finding in findings)


def findings_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `eigen doctor --json` prints. Its keys are a contract."""
    return {
        "healthy": is_healthy(findings),
        "checks": [
            {"check": finding.check, "status": finding.status, "found": finding.found, "advice": finding.advice}
            for finding in findings
        ],
    }
