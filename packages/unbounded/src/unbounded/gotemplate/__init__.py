"""Go's text/template, for templates that users write: the `.tmpl` files of netboot images, and netplan templates.

A `Template` is compiled once and renders any number of times. The behaviour follows Go's documentation, and error
messages those of Go. A rendering has limits (`TemplateLimits`): the author of a template can break the own output, but
cannot keep a controller busy. The caller decides what is rendered, with which functions, and when.
"""

from unbounded.gotemplate.run import TemplateLimits
from unbounded.gotemplate.template import Template
from unbounded.gotemplate.types import ParseError, RenderError, TemplateError

__all__ = [
    "ParseError",
    "RenderError",
    "Template",
    "TemplateError",
    "TemplateLimits",
]
