"""The record: what was decided, said, claimed and planned, by whom, why, and whether it holds.

context         RecordContext: what all modules of one store's record share; Stale
keyed_item      items with numbered events, found and guarded by key
in_run          which parts of the record can be used in the body of a run
decisions       decisions: written before the act, closed by an outcome, listed; the policy
recovery        what dead workers left: listed, judged, closed or done again, swept
facts           claims about the outside world, verified and dated
tasks           tasks: added, claimed, closed, across scopes too
task_events     the events of a scope's tasks, folded into a table that is kept up to date
messages        messages of a conversation: added, read, changed, merged
message_events  a message's events and fields, as stored and read
message_scan    which messages are there, found from the newest event backwards
history_repair  repairs a history for the next request to a model; pure
sessions        sessions and turns, and whether their workers died in them
memory          working memory: what an agent keeps at hand, with a lifetime for each kind
difference      how two moments of a scope differ, and what a restore changed
audit           which parts of a scope's state are never read, and what depends on them
verifier_commands
                verifiers that are commands of the project's configuration
trust           configuration files that the user has read and trusts to run commands
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.record.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.record.api")
