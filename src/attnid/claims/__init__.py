"""The ledger: every claim of arXiv 2609.01231v1 that a number can test, each with a verdict computed from tables.

And questions beyond it (`attnid.claims.beyond`), where the configuration asks them.

A claim is one function of the tables, registered with its written rule (`ledger.claim`) by any module of this package.
Conventions that hold for all:

- **reproduced**: the rule holds. **corrected**: the claim's own definitions give another number, which is given.
  **qualified**: true under conditions that the paper does not state. **not reproduced**: the rule fails.
  **not run**: a table, cell or measure is missing; the evidence says which.
- **Intervals**: a training claim is judged on the 95 % t interval over seeds of one number a seed. The whole interval
  inside the rule's bounds: reproduced. All of it outside: not reproduced. Across a bound: qualified, for the seeds do
  not settle it. A single run has no interval: inside the bounds it is qualified, outside not reproduced.
- **Several parts**: where a rule has several and does not say otherwise, all have to hold: reproduced. If none is
  reproduced and at least one fails: not reproduced. Otherwise qualified.
- **Factors**: what is judged by a factor (rho over 1/(2H), a spike over a median, one case over another) is averaged
  over seeds as its logarithm.
- **Values that are not finite**: a claim that reads a measure which is not finite in some run of its cells is not
  reproduced, and the evidence names cell, seed and step; no run is left out. A measure that a cell lacks altogether is
  missing: not run.
- **Scale**: a verdict on training holds at the scale that the row states.
"""

from attnid.claims.ledger import (
    CORRECTED,
    NOT_REPRODUCED,
    NOT_RUN,
    QUALIFIED,
    REGISTER,
    REPRODUCED,
    VERDICTS,
    Claim,
    Finding,
    all_claims,
    evidence,
    findings,
    judge,
    verdicts,
)
from attnid.claims.render import READING, tally, to_latex, to_markdown, training_scale
from attnid.discovery import import_modules

__all__ = [
    "CORRECTED",
    "NOT_REPRODUCED",
    "NOT_RUN",
    "QUALIFIED",
    "READING",
    "REGISTER",
    "REPRODUCED",
    "VERDICTS",
    "Claim",
    "Finding",
    "all_claims",
    "evidence",
    "findings",
    "judge",
    "tally",
    "to_latex",
    "to_markdown",
    "training_scale",
    "verdicts",
]

import_modules(__name__)
