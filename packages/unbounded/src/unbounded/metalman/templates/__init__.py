"""Go's text/template, for the `.tmpl` files of netboot images.

A `Template` is compiled once and renders any number of times; `template_data` makes its input. The behaviour follows
Go's documentation, and error messages those of Go. A rendering has limits (`TemplateLimits`): the author of an image
can break its own files, but cannot keep metalman busy. The caller decides which files are rendered, and when.
"""

from unbounded.metalman.templates.context import TemplateContext, template_data
from unbounded.metalman.templates.run import TemplateLimits
from unbounded.metalman.templates.template import Template
from unbounded.metalman.templates.types import ParseError, RenderError, TemplateError

__all__ = [
    "ParseError",
    "RenderError",
    "Template",
    "TemplateContext",
    "TemplateError",
    "TemplateLimits",
    "template_data",
]
