"""From the bytes of a request to its JSON object; whatever is not plain JSON is refused in one line."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lovec.serving.wire import RequestRefused

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MEDIA_TYPES = ("", "application/json", "application/x-www-form-urlencoded")
"""The last one is what ``curl -d`` sends where no type is given."""


def check_headers(headers: Mapping[str, str], max_body: int) -> None:
    """Refuse a body by what its headers say, before it is read.

    Args:
        headers: the headers, with names in small letters.
        max_body: the most bytes of a body.

    Raises:
        RequestRefused: the body is too large, compressed, or not JSON in UTF-8.
    """
    if int(headers.get("content-length", 0)) > max_body:
        raise too_large(max_body)
    if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
        raise RequestRefused(f"the body is encoded as {encoding!r}, expected it as it is", status=415)
    media_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters)
    if media_type.strip() not in _MEDIA_TYPES or (charset and charset[1] not in ("utf-8", "utf8", "us-ascii")):
        raise RequestRefused(
            f"the content type is {headers['content-type']!r}, expected application/json in UTF-8", status=415
        )


def too_large(max_body: int) -> RequestRefused:
    """Return the error for a body above the limit of bytes."""
    return RequestRefused(f"the body is larger than {max_body} bytes", status=413)


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        RequestRefused: the bytes are not a JSON object in UTF-8, or hold what readers of JSON disagree about: a key
            twice, NaN, a number that no float holds, half of a surrogate pair.
    """
    try:
        data = json.loads(
            body.decode(), object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse_constant
        )
        if _SURROGATE.search(body):  # such an escape may be half a pair, which tokenizers do not take
            json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise RequestRefused(f"the body is not JSON in UTF-8: {error.reason}") from None
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestRefused(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:40]!r} comes more than once in an object")
    return data


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
