"""How reading or writing pipes from Spark can fail."""

from __future__ import annotations

from scale0_core.api import Scale0Error


class ZpipesError(Scale0Error):
    """Something about pipes in Spark went wrong."""

    def __reduce__(self) -> tuple[type[ZpipesError], tuple[str, str, str, str]]:
        """Let it pass from one process of Spark to another."""
        problem = self.problem
        return type(self), (problem.what, problem.why, problem.consequence, problem.remedy)


class OptionError(ZpipesError):
    """An option, or the columns that are to be written, are not what they should be."""


class UnreachedError(ZpipesError):
    """The broker did not answer in time."""


class AnswerError(ZpipesError):
    """The broker answered with something that makes no sense."""


class DataLossError(ZpipesError):
    """Chunks that were to be read are gone."""


class PayloadError(ZpipesError):
    """A chunk does not hold what it should."""


class RefusedError(ZpipesError):
    """The broker refused, with a code of the zpipes protocol."""

    def __init__(self, what: str, why: str = "", consequence: str = "", remedy: str = "", code: int = 0) -> None:
        super().__init__(what, why, consequence, remedy)
        self.code = code

    def __reduce__(self) -> tuple[type[ZpipesError], tuple[str, str, str, str]]:
        """Let it pass with its code."""
        problem = self.problem
        return type(self), (problem.what, problem.why, problem.consequence, problem.remedy, self.code)  # type: ignore[return-value]
