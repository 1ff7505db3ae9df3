"""Files that people read and edit, as views of the log.

item         items, edits, findings
grammar      one item as one line of markdown
markdown     a markdown file with items in it, spliced
sources      where items are in the log
item_view    a file of items: a form and a source, and the merge of an edit
last_text    the last text that the log knows
directory    a directory of views, kept true to the log
kinds        the views that are built in, by name
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.views.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.views.api")
