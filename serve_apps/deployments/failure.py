"""An error on its way from one replica to another. Knows no deployment."""

from __future__ import annotations

from dataclasses import dataclass

from serve_apps.api.errors import ApiError


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error on its way to the ingress, as a value: Ray would log an exception and change its type."""

    error: ApiError
