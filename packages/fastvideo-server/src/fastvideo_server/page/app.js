// The page: makes videos, follows them, and lists those that there are. It speaks the same API as everybody else.

import { Live } from "/page/live.js";

const $ = (id) => document.getElementById(id);
const KEY = "fastvideo-key";
let model = null;
let last = null;
const urls = new Map(); // object URLs of files, by job and variant: a media element cannot send the key's header

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

async function call(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers) });
  if (response.status === 401) {
    await askForKey();
    return call(path, options);
  }
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

function askForKey() {
  const dialog = $("key-dialog");
  return new Promise((resolve) => {
    const done = () => { sessionStorage.setItem(KEY, $("key").value); $("key").value = ""; resolve(); };
    dialog.addEventListener("close", done, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

function element(name, fields = {}, ...children) {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
}

// Parameters: one field for each, from the card's own schema.

function field(name, spec) {
  const id = `parameter-${name}`;
  const label = element("label", { htmlFor: id, textContent: name.replaceAll("_", " ") });
  const hint = element("span", { className: "hint", id: `${id}-hint`, textContent: [spec.allowed, spec.unit].filter(Boolean).join(", ") });
  let input;
  if (spec.choices) {
    input = element("select", {}, ...spec.choices.map((one) => element("option", { value: one, textContent: one, selected: one === spec.default })));
  } else if (spec.type === "boolean") {
    input = element("select", {}, ...["true", "false"].map((one) => element("option", { value: one, textContent: one, selected: one === String(spec.default) })));
  } else if (spec.type === "integer" || spec.type === "number") {
    input = element("input", { type: "number", step: "any", placeholder: spec.default ?? "drawn" });
    if (spec.minimum !== null) input.min = spec.minimum;
    if (spec.maximum !== null && Math.abs(spec.maximum) < 2 ** 53) input.max = spec.maximum;
  } else {
    input = element("input", { type: "text", placeholder: spec.default ?? "" });
  }
  Object.assign(input, { id, name });
  input.dataset.type = spec.type;
  input.dataset.default = String(spec.default);
  input.setAttribute("aria-describedby", hint.id);
  return element("p", {}, label, input, hint);
}

function showTask() {
  const task = model.tasks[$("task").value];
  $("image-row").hidden = !task.inputs.image;
  $("image").required = Boolean(task.inputs.image?.required);
  $("parameters").replaceChildren(...Object.entries(task.parameters).map(([name, spec]) => field(name, spec)));
}

function given() {
  const values = { prompt: $("prompt").value, task: $("task").value };
  for (const input of $("parameters").querySelectorAll("input, select")) {
    const { type } = input.dataset;
    if (input.value === "" || (input.tagName === "SELECT" && input.value === input.dataset.default)) continue;
    if (type === "integer" || type === "number") values[input.name] = Number(input.value);
    else if (type === "boolean") values[input.name] = input.value === "true";
    else if (type === "integers" || type === "numbers") values[input.name] = input.value.split(",").map(Number);
    else values[input.name] = input.value;
  }
  return values;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function make(values) {
  $("problem").textContent = "";
  try {
    const response = await call("/v1/videos", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` },
      body: JSON.stringify(values),
    });
    follow(await response.json());
    await listFirst();
  } catch (error) {
    $("problem").textContent = error.message;
  }
}

// Now: the job that was made last, as it runs.

async function follow(video) {
  const bar = element("progress", { max: 100, value: 0 });
  bar.setAttribute("aria-label", "progress");
  const text = element("p", { className: "quiet", textContent: "waiting for its turn" });
  text.setAttribute("role", "status");
  const stop = element("button", { type: "button", textContent: "Cancel", onclick: () => remove(video.id) });
  const warnings = video.warnings.map((one) => element("p", { className: "hint", textContent: one }));
  const preview = element("img", { className: "preview", alt: "how it looks so far", hidden: true });
  $("now").replaceChildren(element("p", { textContent: video.prompt }), ...warnings, preview, bar, text, stop);
  $("now").dataset.id = video.id;
  const isShown = () => $("now").dataset.id === video.id;
  for await (const event of events(video.id)) {
    if (!isShown()) return;
    if (event.type === "request.progress") {
      bar.value = 100 * event.fraction;
      const rest = event.remaining_s ? `, ${event.remaining_s.toFixed(1)} s left` : "";
      text.textContent = `${event.node} ${event.step}${event.num_steps ? ` of ${event.num_steps}` : ""}${rest}`;
    } else if (event.type === "media.chunk" && event.image) {
      Object.assign(preview, { src: event.image, hidden: false });
    } else if (event.type === "request.completed") {
      const player = element("video", { src: await content(video.id, "video"), controls: true, loop: true, autoplay: true, muted: true });
      player.setAttribute("aria-label", video.prompt);
      if (isShown()) $("now").replaceChildren(element("p", { textContent: video.prompt }), player);
    } else if (event.type === "request.failed" || event.type === "request.cancelled") {
      text.textContent = event.message ?? "cancelled";
      preview.remove();
      stop.remove();
    }
  }
  await listFirst();
}

async function* events(id) {
  let after = null;
  let isOver = false;
  for (let failures = 0; !isOver && failures < 5; failures += 1) {
    try {
      const response = await call(`/v1/videos/${id}/events`, { headers: after ? { "Last-Event-ID": after } : {} });
      if (response.status === 204) return;
      let rest = "";
      for await (const part of chunks(response.body)) {
        const blocks = (rest + part).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const lines = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
          if (!lines.data) continue;
          [after, failures] = [lines.id, 0];
          const event = JSON.parse(lines.data);
          isOver = ["request.completed", "request.failed", "request.cancelled"].includes(event.type);
          yield event;
        }
      }
    } catch (error) {
      if (!(error instanceof TypeError)) return; // the server's own refusal: the job is gone
    }
    if (!isOver) await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
}

async function content(id, variant) {
  const name = `${id}/${variant}`;
  if (!urls.has(name)) {
    const response = await call(`/v1/videos/${id}/content?variant=${variant}`);
    urls.set(name, URL.createObjectURL(await response.blob()));
  }
  return urls.get(name);
}

// History: what there is, with every resolved parameter.

function row(video) {
  const picture = element("div", { className: "blank" });
  if (video.status === "completed") {
    content(video.id, "thumbnail").then((src) => picture.replaceWith(element("img", { src, alt: "" })), () => {});
  }
  const told = [video.status === "completed" ? "" : video.status, video.size, `${video.seconds} s`, new Date(1000 * video.created_at).toLocaleString(), video.error?.message];
  const what = element("div", { className: "what" }, element("p", { textContent: video.prompt }), element("p", { className: "hint", textContent: told.filter(Boolean).join(" · ") }));
  const rows = Object.entries(video.parameters).map(([name, one]) => element("tr", {}, element("th", { scope: "row", textContent: name }), element("td", { textContent: JSON.stringify(one.value) }), element("td", { textContent: one.source })));
  const table = element("details", {}, element("summary", { textContent: "Parameters" }), element("table", {}, element("tbody", {}, ...rows)));
  const actions = element("p", { className: "row" });
  const add = (text, act) => actions.append(element("button", { type: "button", textContent: text, onclick: act }));
  if (video.status === "completed") add("Play", () => play(video));
  else if (video.status !== "failed") add("Follow", () => follow(video));
  if (!model.tasks[video.task]?.inputs.image) add("Again with another seed", () => again(video));
  add(video.status === "completed" || video.status === "failed" ? "Delete" : "Cancel", () => remove(video.id));
  return element("li", {}, picture, what, table, actions);
}

async function play(video) {
  const player = element("video", { src: await content(video.id, "video"), controls: true, loop: true, autoplay: true, muted: true });
  player.setAttribute("aria-label", video.prompt);
  $("now").dataset.id = video.id;
  $("now").replaceChildren(element("p", { textContent: video.prompt }), player);
  player.focus();
}

function again(video) {
  const values = { prompt: video.prompt, task: video.task };
  for (const [name, one] of Object.entries(video.parameters)) if (one.source === "request" && name !== "seed") values[name] = one.value;
  return make(values);
}

async function remove(id) {
  try {
    await call(`/v1/videos/${id}`, { method: "DELETE" });
  } catch (error) {
    $("problem").textContent = error.message;
  }
  await listFirst();
}

async function listFirst() {
  const page = await (await call("/v1/videos?limit=12")).json();
  $("history").replaceChildren(...page.data.map(row));
  [last, $("older").hidden] = [page.last_id, !page.has_more];
}

async function listMore() {
  const page = await (await call(`/v1/videos?limit=12&after=${last}`)).json();
  $("history").append(...page.data.map(row));
  [last, $("older").hidden] = [page.last_id, !page.has_more];
}

// The live session: what is pushed is followed from the next chunk on.

let live = null;

function goLive() {
  const { task, ...values } = given();
  if (!values.prompt) return;
  live?.stop();
  const task_ = model.tasks[model.stream_task];
  for (const name of Object.keys(values)) if (name !== "prompt" && !task_.parameters[name]) delete values[name];
  $("live").hidden = false;
  $("problem").textContent = "";
  $("pushed").replaceChildren(element("li", { textContent: values.prompt }));
  $("action-row").hidden = !takes(task_, "action");
  $("push-image-row").hidden = !takes(task_, "image");
  setPaused(false);
  live = new Live($("screen"), heard, sessionStorage.getItem(KEY));
  live.start(values);
  $("push").focus();
}

const takes = (task, modality) => Object.values(task.inputs).some((one) => one.modality === modality);

function heard(kind, event) {
  const state = $("live-state");
  if (kind === "refused") state.textContent = event.message;
  else if (kind === "broken") state.textContent = "the connection broke; it is taken up again";
  else if (kind === "over") state.textContent = "the session has ended";
  else if (event.type === "session.chunk") state.textContent = `chunk ${event.chunk} in ${event.latency_s.toFixed(2)} s`;
  else if (event.type === "session.held" && event.reason === "caller") state.textContent = "paused";
  else if (event.type === "session.refused" || event.type === "session.failed") state.textContent = event.message;
  else if (event.type === "session.pushed") $("pushed").lastElementChild?.classList.add("applied");
}

function setPaused(isPaused) {
  $("pause").textContent = isPaused ? "Resume" : "Pause";
  $("pause").setAttribute("aria-pressed", String(isPaused));
}

function pushed(text, kind, fields) {
  $("pushed").append(element("li", { textContent: text }));
  live?.push(kind, fields);
}

function prepareLive() {
  $("go-live").hidden = !model.stream_task || !("MediaSource" in window);
  $("go-live").onclick = goLive;
  $("steer").onsubmit = (submit) => {
    submit.preventDefault();
    const text = $("push").value.trim();
    if (text) pushed(text, "push_text", { text });
    $("push").value = "";
  };
  $("act").onclick = () => {
    const values = $("action").value.split(";").map((one) => one.split(",").map(Number));
    pushed($("action").value, "push_action", { values });
  };
  $("push-image").onchange = async () => {
    const [file] = $("push-image").files;
    if (file) pushed(file.name, "push_image", { image_url: await dataUrl(file) });
  };
  $("pause").onclick = () => {
    const isPaused = $("pause").getAttribute("aria-pressed") !== "true";
    live?.push(isPaused ? "pause" : "resume", {});
    setPaused(isPaused);
  };
  $("end").onclick = () => live?.stop();
}

// The queue and the device, once in a while.

const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;

function showQueue(queue, problems) {
  const rows = [
    ["Card", `${queue.model}, ${queue.precision}`],
    ["Device", queue.device],
    ["Running", queue.running],
    ["Waiting", queue.queued],
    ["Live sessions", queue.sessions],
    ...Object.entries(queue.memory_bytes).map(([name, bytes]) => [`Memory: ${name}`, mebibytes(bytes)]),
    ["Health", problems.length ? problems.join("; ") : "works"],
  ];
  $("queue").tBodies[0].replaceChildren(...rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row", textContent: name }), element("td", { textContent: value }))));
}

async function showState() {
  try {
    const [queue, health] = await Promise.all([call("/v1/queue").then((one) => one.json()), fetch("/health/ready").then((one) => one.json())]);
    const size = (queue.weights_bytes / 2 ** 20).toFixed(0);
    showQueue(queue, health.problems);
    const work = `${queue.running} running, ${queue.queued} waiting`;
    $("state").textContent = [`${model.id} on ${queue.device}, ${queue.precision}, ${size} MiB`, work, ...health.problems].join(" · ");
  } catch {
    $("state").textContent = "the server cannot be reached";
  }
}

async function begin() {
  [model] = (await (await call("/v1/models")).json()).data;
  const tasks = Object.entries(model.tasks).filter(([, task]) => task.outputs.video);
  $("task").replaceChildren(...tasks.map(([name, task]) => element("option", { value: name, textContent: task.description || name, selected: name === model.default_task })));
  $("task").onchange = showTask;
  $("older").onclick = listMore;
  $("ask").onsubmit = async (submit) => {
    submit.preventDefault();
    const values = given();
    const [file] = $("image").files;
    if (file && !$("image-row").hidden) values.input_reference = { image_url: await dataUrl(file) };
    await make(values);
  };
  showTask();
  prepareLive();
  await listFirst();
  await showState();
  setInterval(showState, 3000);
}

begin();
