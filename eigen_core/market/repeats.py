"""Rows about the same symbol and day."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.market.days import Days


@dataclass(frozen=True)
class Repeats:
    """Rows of which each has another one about the same symbol and day.

    Attributes:
        rows: intp `[repeated rows]`, positions of these rows, those of one symbol and day together.
        starts: bool `[repeated rows]`, the row is the first of its symbol and day.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.bool_]

    @classmethod
    def of(cls, codes: NDArray[np.intp], days: Days) -> "Repeats":
        """Find the rows in which a code and a day come more than once; rows without a day are none of them."""
        rows = np.flatnonzero(~np.isnat(days))
        number = days[rows].astype(np.int64)
        first, last = (number.min(), number.max()) if rows.size else (0, 0)
        key = codes[rows] * (last - first + 1) + (number - first)
        ordered = np.sort(key)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        found = np.isin(key, again) if again.size else np.zeros(len(key), dtype=np.bool_)
        rows, key = rows[found], key[found]
        order = np.argsort(key, kind="stable")
        return cls(rows[order], np.diff(key[order], prepend=-1) != 0)

    def difference(self, cells: "pd.Series[Any] | NDArray[Any]") -> tuple[int, int] | None:
        """Return positions of two rows of one symbol and day whose cells differ; None: there are none.

        Args:
            cells: `[all rows]`; two missing ones do not differ.
        """
        if not self.rows.size:
            return None
        codes, _ = pd.factorize(pd.Series(cells).iloc[self.rows], use_na_sentinel=True)
        differs = ~self.starts & (codes != np.concatenate([codes[:1], codes[:-1]]))
        if not differs.any():
            return None
        position = int(np.argmax(differs))
        return int(self.rows[position - 1]), int(self.rows[position])
