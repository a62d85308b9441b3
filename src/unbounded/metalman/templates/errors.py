"""What can go wrong with a template, in the words of Go's text/template."""


class TemplateError(Exception):
    """A template cannot be parsed or rendered; the text names file, line and expression."""


class ParseError(TemplateError):
    """The text of the template is not valid."""


class RenderError(TemplateError):
    """The template is valid and does not fit the data, or asks for more than it may have."""


class CallFailed(Exception):
    """A function or method that a template called returned an error; the text is Go's, without a place."""
