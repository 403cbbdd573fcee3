"""How does a chart of the report become an image? The page itself draws it, in Chromium without a window."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.errors import UserError

FORMATS = ("svg", "png")
LIMIT_S = 300  # for the page to open, and for each chart: 1 to 2 s where the machine has little else to do


@dataclass(frozen=True)
class Order:
    """An image to be drawn.

    Attributes:
        id: of the chart in the page.
        width: in CSS pixels, 96 of which are an inch.
    """

    id: str
    width: int


def draw(page: Path, orders: Sequence[Order], image_format: str, scale: float) -> list[str]:
    """Charts of a report: SVG as text, PNG in base64.

    Args:
        page: the report's file.
        image_format: ``svg`` or ``png``.
        scale: pixels of a PNG for each CSS pixel.

    Raises:
        UserError: there is no Chromium or Chrome, or it does not start.
    """
    from choreographer.errors import (
        BrowserClosedError,
        BrowserFailedError,
        ChromeNotFoundError,
        DevtoolsProtocolError,
    )

    # What the browser says of itself (fonts, D-Bus, GPU) is no message to the user.
    logging.getLogger("choreographer").setLevel(logging.CRITICAL)
    logging.getLogger("browser_proc").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(_draw(page, orders, image_format, scale))
    except ChromeNotFoundError:
        raise UserError(
            "no Chromium or Chrome on this machine: install one, or set BROWSER_PATH to its file"
        ) from None
    except TimeoutError:
        raise UserError(f"Chromium drew no figure: no answer in {LIMIT_S} s") from None
    except (BrowserClosedError, BrowserFailedError, DevtoolsProtocolError, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"Chromium drew no figure: {cause}") from None


async def _draw(page: Path, orders: Sequence[Order], image_format: str, scale: float) -> list[str]:
    import choreographer

    async with choreographer.Browser() as browser:
        tab = await browser.create_tab()
        opened = tab.subscribe_once("Page.loadEventFired")
        await tab.send_command("Page.enable")
        await tab.send_command("Page.navigate", params={"url": page.resolve().as_uri()})
        await asyncio.wait_for(opened, LIMIT_S)
        images = []
        for order in orders:
            words = ", ".join(json.dumps(one) for one in (order.id, image_format, order.width, scale))
            call = {"expression": f"chartImage({words})", "awaitPromise": True, "returnByValue": True}
            answer = await asyncio.wait_for(tab.send_command("Runtime.evaluate", params=call), LIMIT_S)
            images.append(_value(answer, order.id))
        return images


def _value(answer: Mapping[str, Any], id: str) -> str:
    result = answer.get("result", {})
    if "exceptionDetails" in result or "value" not in result.get("result", {}):
        raise UserError(f"Chromium could not draw {id}: {json.dumps(answer)[:300]}")
    value: str = result["result"]["value"]
    return value
