"""What clients see when another replica is gone or full."""

from __future__ import annotations

import pytest
from ray.exceptions import ObjectStoreFullError, OwnerDiedError, RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError

from serve_apps.deployments.ray_errors import from_call


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (RayActorError(), 503, "unavailable"),
        (OwnerDiedError("0" * 56, None, "call"), 503, "unavailable"),
        (ReplicaUnavailableError("r"), 503, "unavailable"),
        (BackPressureError(1, 1), 503, "overloaded"),
        (ObjectStoreFullError("full"), 503, "overloaded"),
        (RayTaskError("f", "Traceback of /secret", ValueError("secret")), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_calls(raised, status, code):
    error = from_call(raised, "engine")
    assert (error.status, error.code) == (status, code)
    assert ("Retry-After" in error.headers()) == (status == 503)
    assert "secret" not in error.message
