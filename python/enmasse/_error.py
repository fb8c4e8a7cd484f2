"""The exception of this package."""


class Error(Exception):
    """What the program says after `error:`, or why a model cannot be used."""

    #: The program's exit code: 2 for a wrong setting, otherwise mostly 1. None where no program ran.
    code: int | None

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
