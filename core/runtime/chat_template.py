"""Chat messages -> the text that a model was trained on, through the checkpoint's own Jinja template, sandboxed.

What a person writes must stay what it says: control tokens spelled out in a message are swapped for marks before the
template runs and come back as plain text afterwards, so only the template itself can write a control token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import CheckpointError

Message = Mapping[str, str]

_GENERATION_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text.
        variables: what the template may use beside the messages, e.g. bos_token.
        label: file or model, for messages.

    Raises:
        CheckpointError: if the text is no Jinja template.
    """

    def __init__(self, source: str, variables: Mapping[str, str], label: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        self._label = label
        self._variables = dict(variables)
        try:
            # {% generation %} only marks spans for training; the text is the same without it.
            self._template = environment.from_string(_GENERATION_TAG.sub("", source))
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template of {label} is not a valid Jinja template: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt text.

        Raises:
            CheckpointError: if the template refuses the messages (e.g. roles that do not alternate).
        """
        try:
            return self._template.render(
                messages=[dict(m) for m in messages], add_generation_prompt=add_generation_prompt, **self._variables
            )
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template of {self._label} refuses these messages: {error}") from error


def split_at(text: str, strings: Sequence[str]) -> list[tuple[str, bool]]:
    """Cut `text` into (piece, is one of `strings`), longest match first; empty pieces are left out."""
    if not strings:
        return [(text, False)] if text else []
    pattern = re.compile("|".join(re.escape(s) for s in sorted(strings, key=len, reverse=True)))
    pieces: list[tuple[str, bool]] = []
    at = 0
    for match in pattern.finditer(text):
        pieces += [(text[at : match.start()], False)] if match.start() > at else []
        pieces.append((match.group(), True))
        at = match.end()
    return pieces + ([(text[at:], False)] if at < len(text) else [])


class Quoting:
    """Swaps spelled-out control tokens for marks and back.

    Args:
        controls: the texts of the control tokens.
        avoid: texts in which a mark must not already occur.
    """

    def __init__(self, controls: Sequence[str], avoid: Sequence[str]) -> None:
        self._controls = tuple(controls)
        spare = (chr(code) for code in range(0xE000, 0xF8FF))  # the private use area
        self._mark = next(c for c in spare if not any(c in text for text in avoid))

    def quote(self, text: str) -> str:
        """Return `text` with each control token replaced by a mark that carries its number."""
        return "".join(
            f"{self._mark}{self._controls.index(piece)}{self._mark}" if control else piece
            for piece, control in split_at(text, self._controls)
        )

    def unquote(self, text: str) -> str:
        """Undo `quote`."""
        return re.sub(f"{self._mark}(\\d+){self._mark}", lambda m: self._controls[int(m.group(1))], text)
