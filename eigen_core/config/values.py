"""Types that settings have, and what their sections have in common."""

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

# Every bound is far above what is of use, and low enough that no arithmetic on a setting overflows.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]
Rows = Annotated[int, Field(ge=1, le=1_000_000_000)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Text = Annotated[str, Field(max_length=4_096, pattern=r"^[^\x00-\x1f\x7f]*$")]


def _real_date(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("date", "no date") from None
    return text


Date = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d\d-\d\d$", json_schema_extra={"format": "date"}),
    AfterValidator(_real_date),
]

# Apart, so that the type checker lets a dictionary stand for a section as pydantic does.
_STRICT = ConfigDict(strict=True)


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys, and values of another type than a setting's."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, **_STRICT
    )
