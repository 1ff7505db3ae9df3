// The search runs in a worker. A page that was opened as a file may not start one, so there a
// hidden frame takes its place: it loads the same script and passes the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.onmessage = null
      this.onerror = null
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = (data) => this.tell(data)
      this.load(String(address)).then(() => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach((data) => this.deliver(data))
      })
    }

    load(address) {
      const inner = this.frame.contentDocument
      return new Promise((resolve, reject) => {
        const script = inner.createElement("script")
        script.src = address
        script.onload = resolve
        script.onerror = reject
        inner.body.append(script)
      })
    }

    // As between a page and a worker: each side has a copy of its own, and gets it later.
    tell(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) })
      setTimeout(() => {
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      })
    }

    postMessage(data) {
      const copy = structuredClone(data)
      if (this.waiting) this.waiting.push(copy)
      else setTimeout(() => this.deliver(copy))
    }

    deliver(data) {
      const inner = this.frame.contentWindow
      if (inner) inner.dispatchEvent(new inner.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
