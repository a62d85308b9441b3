"""Errors of a template, in the words of Go's text/template."""


class TemplateError(Exception):
    """A template cannot be parsed or rendered; the text names file, line and expression."""


class ParseError(TemplateError):
    """The text of the template is invalid."""


class RenderError(TemplateError):
    """The template is valid, but does not fit the data or exceeds a limit."""


class CallFailed(Exception):
    """A function or method that a template called returned an error; the text is Go's, without a place."""
