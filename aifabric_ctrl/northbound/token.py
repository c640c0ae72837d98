"""The secret that writes need: made at start in the state directory, readable by its owner alone, never logged.

Its own file rather than a setting, so that it is in no environment, process list or settings answer.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.settings import Settings

FILE_NAME = "api-token"  # in the state directory, unless the settings name another file
MIN_LENGTH, MAX_LENGTH = 16, 512


def token_path(settings: Settings) -> Path:
    """The file with the token."""
    return settings.api_token_file or settings.state_dir / FILE_NAME


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        InvalidValue: it cannot be read, others may read it, or it holds no token.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_LENGTH + 2)
    except OSError as error:
        raise InvalidValue(f"the API token cannot be read ({error.strerror})", "", str(path)) from None
    if mode & 0o077:
        raise InvalidValue(
            "others may read the API token", f"chmod 600 {path}, and make a new one if somebody may have", str(path)
        )
    text = raw.decode("ascii", "replace").strip()
    if not MIN_LENGTH <= len(text) <= MAX_LENGTH or not all("!" <= c <= "~" for c in text):
        raise InvalidValue(
            f"this is no API token ({MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters)", "delete it", str(path)
        )
    return text


def make_token(path: Path) -> str:
    """The token in ``path``, made if the file is not there.

    Raises:
        InvalidValue: it cannot be read or made.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise InvalidValue(f"the API token cannot be made ({error.strerror})", "", str(path)) from None
    with os.fdopen(made, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    return read_token(path)


def matches(given: str, token: str) -> bool:
    """Equal, in a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
