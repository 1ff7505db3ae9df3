"""The projectors of the documents that this project began with, as they stand there."""
# ruff: noqa
# fmt: off
# pyright: basic

def task_projector(state: dict, event: dict) -> dict:
  """Derive current task states from the event stream."""
  if event["type"] == "task_created":
    task_id = event["data"]["task_id"]
    state[task_id] = {
      "title": event["data"]["title"],
      "status": "open",
      "created_at": event["timestamp"],
      "agent": event["agent"]
    }
  elif event["type"] == "task_started":
    task_id = event["data"]["task_id"]
    if task_id in state:
      state[task_id]["status"] = "in_progress"
      state[task_id]["started_at"] = event["timestamp"]
  elif event["type"] == "task_completed":
    task_id = event["data"]["task_id"]
    if task_id in state:
      state[task_id]["status"] = "completed"
      state[task_id]["completed_at"] = event["timestamp"]
      state[task_id]["result"] = event["data"].get("result")
  return state


def project_decisions(events: list[dict]) -> dict[int, dict]:
  """Project current decision state from event stream.

  Handles both v1 and v2 event types.
  """
  decisions = {}
  for event in events:
    if event["type"] == "decision_made":
      did = len(decisions) + 1
      decisions[did] = {
        "text": event["data"]["text"],
        "result": None,
        "priority": "normal"
      }
    elif event["type"] == "decision_outcome":
      did = event["data"]["decision_id"]
      decisions[did]["result"] = event["data"]["outcome"]
    elif event["type"] == "decision_result":
      did = event["data"]["decision_id"]
      decisions[did]["result"] = event["data"]["result"]
    elif event["type"] == "decision_prioritized":
      did = event["data"]["decision_id"]
      decisions[did]["priority"] = event["data"]["priority"]
  return decisions
