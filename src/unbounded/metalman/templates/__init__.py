"""Go's text/template, for the `.tmpl` files of netboot images.

A `Template` is compiled once and renders any number of times; `template_data` makes its input. The behaviour follows
Go's documentation, and error messages those of Go. A rendering has limits (`Limits`): the author of an image can break
its own files, but cannot keep metalman busy. The caller decides which files are rendered, and when.
"""

from unbounded.metalman.templates.errors import ParseError, RenderError, TemplateError
from unbounded.metalman.templates.machine import Surroundings, template_data
from unbounded.metalman.templates.run import Limits
from unbounded.metalman.templates.template import Template

__all__ = ["Limits", "ParseError", "RenderError", "Surroundings", "Template", "TemplateError", "template_data"]
