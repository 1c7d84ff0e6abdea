"""What a failed call to another replica means to the client."""

from __future__ import annotations

from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    RayActorError,
    RayError,
)
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
)

from serve_apps.api.errors import ApiError, overloaded, unavailable
from serve_apps.chat.errors import to_api_error

RESTART_SECONDS = 5.0
"""Retry-After while a replica is being restarted."""

# What is raised when the process that had the work, or the object, has gone.
REPLICA_GONE = (
    RayActorError,
    ActorUnavailableError,
    ObjectLostError,
    ReplicaUnavailableError,
    DeploymentUnavailableError,
)

CALL_ERRORS = (RayError, RayServeException)


def from_call(error: BaseException, what: str) -> ApiError:
    """The client's error for a call to `what` (such as "engine") that failed."""
    if isinstance(error, (BackPressureError, ObjectStoreFullError)):
        return overloaded(f"The {what} has more work than it can queue. Send the request again later.")
    if isinstance(error, (*REPLICA_GONE, GetTimeoutError)):
        return unavailable(
            f"The {what} stopped and is being restarted. Send the request again later.", RESTART_SECONDS
        )
    return to_api_error(error)
