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
      inner.importScripts = (...scripts) =>
        scripts.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve())
      this.load(String(address)).then(() => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach((data) => this.postMessage(data))
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

    tell(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      if (this.waiting) {
        this.waiting.push(data)
        return
      }
      const inner = this.frame.contentWindow
      const event = new inner.MessageEvent("message", { data })
      inner.dispatchEvent(event)
      if (inner.onmessage) inner.onmessage(event)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
