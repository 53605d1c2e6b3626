"""Packages that only some executors need: a clear error, before the first task, where one or its settings are missing."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def require_ray() -> ModuleType:
    """The module `ray`."""
    try:
        import ray
    except ImportError as error:
        raise ModuleNotFoundError(f"workers of Ray need ray ({error}): pip install 'headrace[ray]'") from error
    return ray  # type: ignore[no-any-return]


def require_aws(service: str, *, endpoint_url: str | None = None, **options: Any) -> Any:
    """A client of boto3 for a service, with credentials and a region.

    options: of botocore's `Config`.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ModuleNotFoundError(f"{service} needs boto3 ({error}): pip install 'headrace[aws]'") from error
    session = boto3.Session()
    try:
        if session.get_credentials() is None:
            raise ValueError(
                "no credentials of AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`, or use a role"
            )
        return session.client(service, endpoint_url=endpoint_url, config=Config(**options))
    except BotoCoreError as error:  # no region, a profile that is not there, a bad endpoint
        raise ValueError(f"{service} cannot be used: {error} Set AWS_DEFAULT_REGION or your profile.") from error
