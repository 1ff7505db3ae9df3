"""What the demo is about: a support team's tickets, and who works on them. Pure."""

from __future__ import annotations

from typing import Any

TEAM = "team/support"
INBOX = "conversation/inbox"
MORNING = "morning"
BEFORE_MISTAKE = "before the clean-up"
DISPUTED = "T-03"

SUBJECTS = [
    "parcel arrived broken",
    "cannot sign in",
    "where is my refund",
    "invoice has the wrong name",
    "app crashes on start",
    "please delete my account",
    "charged twice",
    "colour is not as shown",
    "delivery is late",
    "gift card does not work",
    "how do I change my address",
    "the box was empty",
]

_PRIORITIES = {
    "broken": "high",
    "crashes": "high",
    "charged": "urgent",
    "refund": "high",
    "empty": "high",
    "delete": "urgent",
}


def opening_state() -> dict[str, Any]:
    """Returns the team's state in the morning: every ticket open."""
    tickets = {
        f"T-{number:02}": {"subject": subject, "status": "open"}
        for number, subject in enumerate(SUBJECTS, 1)
    }
    return {"tickets": tickets, "triaged": 0, "mails": 0}


def judge(subject: str) -> str:
    """Returns the priority that an agent gives a ticket; a model would be asked here."""
    for word, priority in _PRIORITIES.items():
        if word in subject:
            return priority
    return "normal"


def write_mail(number: int) -> dict[str, Any]:
    """Returns one mail of the import."""
    return {"number": number, "text": f"mail {number}: {SUBJECTS[number % len(SUBJECTS)]}"}
