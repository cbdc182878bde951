"""How is a Ray cluster reached, and what is said when it, or a worker of it, is gone?

Ray is an extra. It schedules, sends, restarts and asks again; there is nothing of that here.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vicinal.checks import InputError
from vicinal.files import reason

RESTARTS = 3  # of a worker that dies
KNOCK = 10.0  # seconds until somebody must answer at an address; Ray would wait for minutes
# A loaded machine may take its time to start a cluster; Ray's own patience is 30 seconds. Its
# workers would give way to everything else on the machine (niceness 15), this process among it.
_LOCAL = {
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def connect(on: str) -> Any:
    """Ray, connected: ``"ray"`` is the cluster of RAY_ADDRESS or a new local one; or an address."""
    try:
        import ray  # an extra
    except ImportError:
        raise InputError(f"on={on!r} needs Ray: pip install 'vicinal[ray]'.") from None
    if on != "ray" and not on.startswith("ray://"):
        raise InputError(f"on={on!r} is no cluster. Give ray, or ray://host:10001.")
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS") if on == "ray" else on
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address:
            _knock(address)
            _show_token()
            ray.init(address=address, **quiet)
        else:
            for name, value in _LOCAL.items():
                os.environ.setdefault(name, value)
            ray.init(address="local", include_dashboard=False, **quiet)  # no stranger's
    except Exception as error:  # Ray has no one kind for it
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        raise InputError(
            f"cannot reach {where}: {reason(error)}. Check that it runs (ray status) and that its "
            "token, if it asks for one, is in RAY_AUTH_TOKEN or ~/.ray/auth_token here; or leave "
            "--on out to work in one process."
        ) from None
    return ray


def _knock(address: str) -> None:
    """Refused at once where nobody listens, or in ten seconds where it is somebody else.

    "auto" and "local" name no place to knock at; behind TLS only Ray has the keys.
    """
    place = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:([0-9]{1,5})", address)
    if place is None:
        return
    socket.create_connection((place[1], int(place[2])), timeout=KNOCK).close()
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return
    import grpc  # comes with Ray's client

    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        try:
            grpc.channel_ready_future(channel).result(KNOCK)
        except grpc.FutureTimeoutError:
            raise ConnectionError("what answers there does not speak as Ray does") from None


def _show_token() -> None:
    """Ray's client, alone of its doors, would not show a token that is at hand.

    ``ray start`` asks for the token in ~/.ray where there is one, and any local cluster before left
    one there; its client then waits half a minute and says that the connection timed out.
    """
    try:
        from ray._private.authentication import authentication_token_setup as tokens

        show = tokens.maybe_enable_token_auth_if_token_available
    except (ImportError, AttributeError):  # an older Ray asks for a token only where it is told to
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    show()


def places(ray: Any, wanted: int | None = None) -> tuple[int, int]:
    """How many actors to start, and the cores that each takes.

    As many as cores are free, and one core each; where others have taken the cores, they are shared
    (0 each): an actor that waits for a core of its own may wait for ever.
    """
    free = int(ray.available_resources().get("CPU", 0))
    count = max(1, wanted or free or int(ray.cluster_resources().get("CPU", 1)))
    return count, int(count <= free)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """What a worker complains of, or that it keeps dying, as one sentence."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, InputError):
            raise InputError(str(cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        last = str(error).strip().splitlines()[-1][:200]
        if "creation task" in str(error):
            raise InputError(
                f"a worker for {what} could not start: {last}. The same vicinal must be installed "
                "on every machine of the cluster."
            ) from None
        raise InputError(
            f"a worker that holds {what} keeps dying; Ray restarted it {RESTARTS} times. Does its "
            "piece fit into the memory of its machine? Use more workers or smaller shards."
        ) from None
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise InputError(
            f"the Ray cluster was lost while it worked on {what} ({reason(error)}). Run the same "
            "command again: finished blocks are kept."
        ) from None
