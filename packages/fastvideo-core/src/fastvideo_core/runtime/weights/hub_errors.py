"""What the hub client's errors mean to a user, in one line with the remedy."""

from __future__ import annotations

from fastvideo_core.errors import DownloadError
from fastvideo_core.runtime.weights.download import is_transport_error

_LOG_IN = "run `hf auth login`, or set HF_TOKEN to a token from your account's settings"


def explain(error: Exception, *, what: str, repo_id: str, endpoint: str, has_token: bool) -> Exception:
    """Return the error to raise for one that the client or the connection raised.

    Args:
        error: What was raised.
        what: Repository and revision, for the message.
        repo_id: The repository.
        endpoint: The Hub's address.
        has_token: Whether the request had a token.

    Returns:
        A `DownloadError`; the error itself if it is not about the Hub.
    """
    from huggingface_hub import errors

    # The client wraps the real reason when it also found nothing in its cache.
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    page = f"{endpoint}/{repo_id}"
    if isinstance(error, errors.GatedRepoError):
        remedy = "then run again" if has_token else f"then {_LOG_IN}"
        return DownloadError(f"{repo_id} is gated: accept its terms on {page} with your account, {remedy}")
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "your token cannot see it" if has_token else f"it is private: {_LOG_IN}"
        return DownloadError(f"no repository {repo_id} on {endpoint}; check the spelling, or {hint}")
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(f"no such revision: {what}; see {page}/commits/main for those that are there")
    if isinstance(error, errors.DisabledRepoError):
        return DownloadError(f"{repo_id} has been disabled by the Hub; see {page}")
    if is_transport_error(error) or isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(f"{what}: {unreachable(error, endpoint)}; check the network and run again")
    if isinstance(error, errors.HfHubHTTPError):
        return DownloadError(f"{what}: {endpoint} answered {error.response.status_code}; {_status_remedy(error)}")
    if isinstance(error, (errors.EntryNotFoundError, errors.FileMetadataError, OSError)):
        return DownloadError(f"{what}: {_first_line(error)}")
    return error


def unreachable(error: Exception, endpoint: str) -> str:
    """Return why the Hub cannot be reached, for a message."""
    return f"cannot reach {endpoint} ({_first_line(error) or type(error).__name__})"


def _status_remedy(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status == 401:
        return f"its token is not valid: {_LOG_IN}"
    if status == 403:
        return "your account may not read it"
    if status == 429:
        return "too many requests: wait some minutes and run again"
    return "wait and run again" if status >= 500 else _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else ""
