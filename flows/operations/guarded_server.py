"""The process of the Prefect server that `eigen up` starts: `python -P -m flows.operations.guarded_server HOST PORT`.

As `prefect server start` in the foreground, and it refuses web pages of other origins (`flows.request_guard`).
"""

import sys


def main() -> None:
    """Serve API and pages until the process is ended."""
    import uvicorn
    from prefect.settings import (
        PREFECT_SERVER_API_KEEPALIVE_TIMEOUT,
        PREFECT_SERVER_API_WEBSOCKET_PING_INTERVAL,
        PREFECT_SERVER_API_WEBSOCKET_PING_TIMEOUT,
        PREFECT_SERVER_LOGGING_LEVEL,
    )

    from flows.prefect_internals import server_app
    from flows.request_guard import guard

    host, port = sys.argv[1:]
    app = server_app()
    guard(app, host)
    uvicorn.run(
        app,
        host=host,
        port=int(port),
        timeout_keep_alive=PREFECT_SERVER_API_KEEPALIVE_TIMEOUT.value(),
        ws_ping_interval=PREFECT_SERVER_API_WEBSOCKET_PING_INTERVAL.value(),
        ws_ping_timeout=PREFECT_SERVER_API_WEBSOCKET_PING_TIMEOUT.value(),
        log_level=PREFECT_SERVER_LOGGING_LEVEL.value().lower(),
    )


if __name__ == "__main__":
    main()
