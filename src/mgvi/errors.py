"""The warning category and the exception that users of the package may catch.

Nothing comes in; two classes go out. This file imports nothing and must not know what any message says.
"""


class MgviWarning(UserWarning):
    """Something works, but probably not as the user expects."""


class ModelError(ValueError):
    """The model or its data cannot be used.

    The message names the site, what was expected, what was found and what to do.
    """


class FileError(OSError):
    """A saved result or checkpoint cannot be used; the message says which file, why, and what to do."""


class FitError(RuntimeError):
    """A fit broke down; the message names the round, the site and what to try.

    Parameters
    ----------
    message : str
        What happened.
    posterior : Posterior, optional
        The last good result.
    """

    def __init__(self, message: str, posterior=None):
        super().__init__(message)
        self.posterior = posterior
