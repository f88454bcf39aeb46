"""Whether the control plane runs from a checkout or was installed from wheels, and what follows from it.

The image counts as a checkout: it has the files of one. Nothing here imports Django.
"""

import os
import secrets
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
#: The checkout. Of an installation it is the folder of all packages, where nothing of ours may be written.
FOLDER = _PACKAGE.parent
_PROJECT = _PACKAGE / "pyproject.toml"
#: No wheel has the file that describes it.
IS_CHECKOUT = _PROJECT.exists()
#: The words before the name of a command.
COMMAND = "python manage.py" if IS_CHECKOUT else "fuseboard-server"
#: Pages in Markdown, which the dashboard shows.
RUNBOOKS = FOLDER / "docs" / "runbooks" if IS_CHECKOUT else _PACKAGE / "runbooks" / "pages"


def default_data_dir() -> Path:
    """The folder of data where ``FUSEBOARD_DATA_DIR`` names none.

    An installation has the folder of its user, so that each process finds the same one, wherever it starts.
    """
    if IS_CHECKOUT:
        return FOLDER / ".fuseboard"
    # The specification says that a relative path is as good as none.
    base = Path(os.environ.get("XDG_DATA_HOME") or "~")
    if base.is_absolute():
        return base / "fuseboard"
    try:
        return Path("~/.local/share").expanduser() / "fuseboard"
    except RuntimeError:
        sys.exit("This user has no home folder for the data: set FUSEBOARD_DATA_DIR to a folder of the user.")


def sign_nothing() -> None:
    """Keep the settings from writing a secret key: this process needs none, and its disk may be read-only."""
    if not os.environ.get("FUSEBOARD_SECRET_KEY") and not os.environ.get("FUSEBOARD_SECRET_KEY_FILE"):
        os.environ["FUSEBOARD_SECRET_KEY"] = secrets.token_hex(32)


def version() -> str:
    """The release, with the commit if it is known: ``0.2.0 (commit 1a2b3c4d5e6f)``."""
    # Every process imports this module, and one command needs these.
    import tomllib
    from importlib.metadata import version as version_of

    from fuseboard.contract.build import commit_of

    number = (
        tomllib.loads(_PROJECT.read_text())["project"]["version"]
        if IS_CHECKOUT
        else version_of("fuseboard-controlplane")
    )
    commit = commit_of(_PACKAGE, checkout=FOLDER)
    return f"{number} (commit {commit})" if commit else str(number)
