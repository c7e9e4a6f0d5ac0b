"""A report in short, for a page of Prefect: verdict, figures, and where the whole is."""

from eigen_core.reporting.report.content import NAMES, Report
from eigen_core.reporting.report.curves import AGENT
from eigen_core.reporting.report.tables import figures_table
from eigen_core.reporting.tables import Row, markdown_table


def report_markdown(report: Report, where: str) -> str:
    """Return the verdict of a report, what it rests on and its figures as markdown.

    Args:
        report: in full.
        where: the file with the plots and all tables.
    """
    others = {NAMES.get(name, name): found for name, found in report.baseline_figures.items()}
    table = figures_table({AGENT: report.figures} | others, "")
    columns = ("Figure", *table.columns[1:])
    rows: list[Row] = [{column: cell.text for column, cell in zip(columns, row, strict=True)} for row in table.rows]
    page = [
        f"# {report.run}, {report.agent}: {report.span}, {report.first} to {report.last}",
        f"**{report.sentence}**",
        "\n".join(f"- **{fact.name}**: {fact.value} {fact.note}".rstrip() for fact in report.facts),
        markdown_table(rows),
        f"Plots and all tables: `{where}`",
    ]
    return "\n\n".join(filter(None, page))
