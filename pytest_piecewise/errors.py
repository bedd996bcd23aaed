"""Exceptions: a check that could *not be made*. A check that was made and failed is a `records.Finding`, never an exception.

PiecewiseError
|-- ModelError          the model, or what was asked of it, cannot be used as given
|-- BuildError          a variant could not be built; carries the name of the check that it answers
|-- BaselineError       a stored baseline cannot be read or must not be written
|-- HistoryError        the history cannot be opened, read or written
|-- ReportError         a report cannot be read
`-- UnfitError          this machine cannot do what was asked: no compiler, no such GPU
"""


class PiecewiseError(Exception):
    """Base of all errors of this package. The message says what was expected, what was found and what to do."""


class ModelError(PiecewiseError):
    """A `Model`, or an option that selects one, is unusable."""


class BuildError(PiecewiseError):
    """A variant could not be built. `check` names the check that this answers, for example `graph_breaks`."""

    def __init__(self, check: str, summary: str, detail: str = "", action: str = "") -> None:
        super().__init__(summary)
        self.check, self.summary, self.detail, self.action = check, summary, detail, action


class BaselineError(PiecewiseError):
    """A baseline file is malformed, belongs to something else, or may not be written here."""


class UnfitError(PiecewiseError):
    """The machine lacks what every build needs. A session with no other failure ends with an exit code of its own."""


class HistoryError(PiecewiseError):
    """A history cannot be opened, read or written: not there, of a newer schema, locked, or of an unknown kind."""


class ReportError(PiecewiseError):
    """A report cannot be read: not there, not JSON, or of another schema."""
