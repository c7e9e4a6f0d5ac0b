"""Types of settings, with their bounds."""

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

# The bounds are far above useful values, and low enough that arithmetic on settings cannot overflow.
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

# Not inline: the type checker then accepts a dictionary for a section, as pydantic does.
_STRICT = ConfigDict(strict=True)


class Section(BaseModel):
    """A frozen section of the configuration that rejects unknown keys and values of the wrong type."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, **_STRICT
    )
