"""An agent with tools, approval, crash and recovery: run it again, and it goes on.

python examples/agent.py STORE QUESTION

A tool that acts on the world is a decision of its call: written before the act, and closed together
with the call's result. After a crash `recover` asks the verifier, acts if it must, and the result
is there: the model is never asked to send again.
"""

import json
import sys
from pathlib import Path

import holdfast

OUTBOX = Path(sys.argv[1] + ".outbox") if len(sys.argv) > 1 else Path("agent.outbox")


# --- tools: what they do, and how to find out whether it was done ---
def look_up(arguments):
    return {"ana": "ana@example.org"}.get(arguments["name"], "nobody of that name")


@holdfast.act
def send(decision):
    with OUTBOX.open("a") as outbox:  # the world outside
        outbox.write(json.dumps({"key": decision.key, **decision.arguments}) + "\n")
    return f"sent to {decision.arguments['to']}"


@holdfast.verifier
def was_sent(decision):
    sent = OUTBOX.read_text().splitlines() if OUTBOX.exists() else []
    if any(json.loads(line)["key"] == decision.key for line in sent):
        return holdfast.Done(f"sent to {decision.arguments['to']}")
    return holdfast.NotDone()


def approved(call):
    """A person says yes or no; here everything but mail to everybody is approved."""
    return call["arguments"]["to"] != "all@example.org"


# --- the model: scripted here; `model = client.ask` makes it a real one ---
def scripted(history):
    done = [item["tool_call_id"] for item in history if item["role"] == "tool"]
    if "c1" not in done:
        return {"tool_calls": [{"id": "c1", "name": "look_up", "arguments": {"name": "ana"}}]}
    if "c2" not in done:
        mail = {"to": "ana@example.org", "text": history[0]["content"]}
        return {"tool_calls": [{"id": "c2", "name": "send", "arguments": mail}]}
    return {"content": "I have written to Ana."}


model = scripted


# --- the loop ---
def work(hf, chat):
    while task := chat.tasks.claim():
        while not chat.messages or chat.messages[-1].role != "assistant" or pending(chat):
            for call in pending(chat):
                run_tool(hf, chat, call)
            answer = model(chat.messages.for_request())
            chat.messages.add("assistant", **answer)
        with hf.commit() as tx:  # the task and the state are one commit
            tx.scope(chat).tasks.close(task, chat.messages[-1].text)
            tx.scope(chat).increment("answered")


def pending(chat):
    results = {message.tool_call_id for message in chat.messages}
    return [c for m in chat.messages for c in m.tool_calls if c["id"] not in results]


def run_tool(hf, chat, call):
    if call["name"] == "look_up":
        chat.messages.add("tool", look_up(call["arguments"]), tool_call_id=call["id"])
    elif not approved(call):
        chat.messages.add("tool", "refused by a person", tool_call_id=call["id"])
    else:
        decide = {"call": call["id"], "arguments": call["arguments"], "if_exists": "attach"}
        with chat.decide("send the mail", verify=was_sent, act=send, **decide) as decision:
            decision.outcome(send(decision.stored))


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as hf:
        hf.recover()
        chat = hf.conversation("mail")
        with hf.commit(key="question") as tx:  # asked once, however often this is started
            tx.scope(chat).messages.add("user", sys.argv[2])
            tx.scope(chat).tasks.add(sys.argv[2])
        work(hf, chat)
        print(chat.messages.render())
