"""Files that people read and edit, as views of the log.

item         items, edits, findings
grammar      one item as one line of markdown
markdown     a markdown file with items, of which only changed lines are replaced
yaml_list    a YAML file with a list of items
mapping      a JSON or YAML file whose keys are items
yaml_text    loading and dumping YAML, for both
rows         files that only grow
sources      where items are in the log
item_view    a file of items: a form and a source, and the merge of an edit
last_text    the last text that the log knows, kept beside each file
directory    a directory of views: imports edits, writes the files
freshness    threads that sync a directory after commits and edits
kinds        the built-in kinds of views, by name
config       the views of a configuration file
kept         the view directories of one store handle
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.views.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.views.api")
