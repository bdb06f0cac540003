// The live view: one session over a WebSocket, played while it is made, and taken up again when the connection breaks.

const AHEAD_S = 2; // made beyond what has been watched: what is pushed shows after so long
const KEEP_S = 20; // kept behind what has been watched

export class Live {
  // `tell(kind, event)` hears of states and events; `key` is the API key, or null.
  constructor(video, tell, key) {
    Object.assign(this, { video, tell, key, id: null, received: -1, queue: [], next: null, buffer: null, isOver: false, number: 0 });
    this.media = new MediaSource();
    this.url = URL.createObjectURL(this.media);
    video.src = this.url;
    this.timer = setInterval(() => this.acknowledge(), 250);
  }

  start(fields) {
    this.connect({ type: "session.create", options: { buffer_s: AHEAD_S }, ...fields });
  }

  push(kind, fields) {
    this.say({ type: `session.${kind}`, id: `${kind}-${(this.number += 1)}`, ...fields });
  }

  stop() {
    this.push("close", {});
  }

  connect(first) {
    const names = this.key ? ["fastvideo", `fastvideo.key.${base64url(this.key)}`] : ["fastvideo"];
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/sessions`, names);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(JSON.stringify(first));
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.described(JSON.parse(data)) : this.arrived(this.next, data));
    socket.onclose = () => this.closed();
    this.socket = socket;
  }

  closed() {
    if (this.isOver || this.id === null || Date.now() > this.until) {
      this.end();
      return;
    }
    this.tell("broken", {});
    setTimeout(() => this.connect({ type: "session.attach", session_id: this.id, received: this.received }), 300);
  }

  described(message) {
    if (message.type === "reply") {
      if (message.session_id && this.id === null) this.id = message.session_id;
      if (message.reconnect_s) [this.reconnectMs, this.until] = [1000 * message.reconnect_s, Infinity];
    } else if (message.type === "error") {
      this.tell("refused", message.error);
    } else if (message.num_bytes) {
      this.next = message;
    } else {
      this.received = message.number;
      this.isOver ||= ["session.ended", "session.failed"].includes(message.type);
      this.tell("event", message);
      this.acknowledge();
      if (this.isOver) this.socket.close();
    }
    if (this.socket.readyState === WebSocket.OPEN && this.reconnectMs) this.until = Date.now() + this.reconnectMs;
  }

  arrived(message, data) {
    this.received = message.number;
    if (message.type === "media.init") {
      this.opened = this.media.readyState === "open" ? Promise.resolve() : new Promise((done) => this.media.addEventListener("sourceopen", done, { once: true }));
      this.opened.then(() => {
        this.buffer = this.media.addSourceBuffer(message.mime);
        this.buffer.onupdateend = () => this.feed();
        this.feed();
      });
    }
    this.queue.push(data);
    this.tell("event", message);
    this.feed();
  }

  feed() {
    if (!this.buffer || this.buffer.updating || this.media.readyState !== "open") return;
    const behind = this.video.currentTime - KEEP_S;
    if (this.queue.length) this.buffer.appendBuffer(this.queue.shift());
    else if (this.buffer.buffered.length && this.buffer.buffered.start(0) < behind - KEEP_S) this.buffer.remove(0, behind);
    else if (this.isOver) this.media.endOfStream();
    if (this.video.paused && !this.video.ended) this.video.play().catch(() => {});
    this.acknowledge();
  }

  acknowledge() {
    if (this.received >= 0 && !this.isOver) this.say({ type: "session.ack", received: this.received, viewed_s: this.video.currentTime });
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  end() {
    clearInterval(this.timer);
    this.isOver = true;
    this.feed();
    this.tell("over", {});
  }
}

function base64url(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
