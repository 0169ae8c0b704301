// The Predict door: a question, its stages, its answer as numbers and charts. All text is set as text.
(function () {
  "use strict";

  const PIECE = 4 * 2 ** 20;
  const POLL_MS = 250;
  const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const PARTS = [
    ["weights_mb", "weights"], ["gradients_mb", "gradients"], ["optimizer_mb", "optimizer"],
    ["activations_mb", "activations"], ["workspace_mb", "workspace"], ["context_mb", "context"],
  ];
  const at = (id) => document.getElementById(id);
  const models = { a: {}, b: {} }; // file, shown, sha256
  let runtimes = []; // beside PyTorch, which has modes
  let options = null;
  let going = null; // what is being asked: how to end it
  let drawn = []; // charts, to draw again when the window changes

  function make(kind, text, name) {
    const found = document.createElement(kind);
    if (text !== undefined && text !== null) found.textContent = text;
    if (name) found.className = name;
    return found;
  }

  function drawing(kind, given, text) {
    const found = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [key, value] of Object.entries(given)) found.setAttribute(key, value);
    if (text !== undefined) found.textContent = text;
    return found;
  }

  const colour = (place) => `var(--c${place % 8})`;

  function show(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  }

  // Asking.
  class Refused extends Error {
    constructor(error, status) {
      super(error.message);
      this.hint = error.hint || "";
      this.type = error.type;
      this.status = status;
    }
  }

  async function call(method, path, signal, body) {
    const answer = await fetch(`/predict/${path}`, { method, signal, body });
    const text = await answer.text();
    if (answer.ok) return text ? JSON.parse(text) : null;
    let error = { message: text.trim().slice(0, 300), hint: "" };
    try {
      error = JSON.parse(text).error;
    } catch (_) { // a line of text
      if (answer.status === 401) error = { message: "the token is missing", hint: "Open the address that dippm ui printed." };
    }
    throw new Refused(error, answer.status);
  }

  const wait = (ms, signal) =>
    new Promise((done, fail) => {
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", () => { clearTimeout(timer); fail(new DOMException("", "AbortError")); }, { once: true });
    });

  async function send(side, signal) {
    const held = models[side];
    if (!held.file) return;
    const { file } = held;
    const plain = file.name.replace(/[^A-Za-z0-9_.+-]/g, "_").replace(/^[^A-Za-z0-9_]+/, "").slice(-100) || "model";
    const { id } = await call("POST", `uploads?name=${encodeURIComponent(plain)}`, signal);
    try {
      at("progress").hidden = false;
      stage(`sending ${file.name}`);
      for (let start = 0; start < file.size; start += PIECE) {
        await call("PUT", `uploads/${id}?at=${start}`, signal, file.slice(start, start + PIECE));
        at("progress").value = Math.min(1, (start + PIECE) / file.size);
      }
      const { sha256 } = await call("POST", `uploads/${id}/end`, signal);
      held.sha256 = sha256;
    } catch (error) {
      fetch(`/predict/models/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
      throw error;
    } finally {
      at("progress").hidden = true;
    }
  }

  async function ask(kind, body, name, signal) {
    const path = `ask/${kind}?name=${encodeURIComponent(name)}`;
    const found = await call("POST", path, signal, JSON.stringify(body));
    let { job } = found;
    if (!job) return found;
    going.jobs.add(job.id);
    let told = 0;
    while (!["done", "failed", "cancelled"].includes(job.state)) {
      if (job.state === "queued" && job.position > 1) at("message").textContent = `${job.position - 1} questions are before this one`;
      else at("message").textContent = "";
      for (; told < job.stages.length; told += 1) stage(job.stages[told].stage);
      await wait(POLL_MS, signal);
      job = await call("GET", `jobs/${job.id}`, signal);
    }
    for (; told < job.stages.length; told += 1) stage(job.stages[told].stage);
    going.jobs.delete(job.id);
    try {
      found.answer = await call("GET", `jobs/${job.id}/result`, signal);
    } catch (error) {
      if (error.type === "UnsafeModelError" && found.command) {
        error.hint = `The page runs no code of a file. Export the model to ONNX, or, if you know where the file comes from, ask in a terminal:\n${found.command} --trust`;
      }
      throw error;
    }
    return found;
  }

  function stage(words) {
    const list = at("stages");
    if (list.lastChild && list.lastChild.textContent === words) return;
    list.append(make("li", words));
    list.scrollTop = list.scrollHeight;
  }

  function question(side) {
    const own = at(`name-${side}`).value.trim();
    const from = side === "b" && !models.b.file && !own ? "a" : side;
    const held = models[from];
    const name = at(`name-${from}`).value.trim();
    if (!held.file && !name) throw new Refused({ message: "there is no model yet", hint: "Drop a file, choose one, or type a name such as timm:resnet50." }, 0);
    const how = at("mode").value;
    const given = {
      ...(runtimes.includes(how) ? { runtime: how } : { mode: how }), phase: at("phase").value, precision: at("precision").value,
      device: at(`device-${side}`).value,
    };
    if (!at("optimizer").disabled) given.optimizer = at("optimizer").value;
    if (at("input").value.trim()) given.input = at("input").value.trim();
    const batch = Number(at("batch").value);
    const mig = at(`mig-${side}`).value || null;
    return { from, given, batch, mig, shown: held.file ? held.file.name : name, name };
  }

  const reference = (one) => (models[one.from].file ? { sha256: models[one.from].sha256 } : one.name);

  async function answer_side(side, signal, again) {
    const one = question(side);
    if (models[one.from].file && !models[one.from].sha256) await send(one.from, signal);
    try {
      const asked = { ...one.given, model: reference(one), batch: one.batch, tree: true, html: true };
      if (one.mig) asked.mig = one.mig;
      const found = await ask("predict", asked, one.shown, signal);
      const device = options.devices.find((o) => o.name === one.given.device);
      const batches = [...new Set([...BATCHES, one.batch])].sort((a, b) => a - b);
      const slices = one.mig ? [one.mig] : [null, ...device.slices.map((o) => o.name)];
      const curve = { ...one.given, models: [reference(one)], batch: batches, mig: slices };
      let rows = [];
      let reason = "";
      try {
        rows = (await ask("compare", curve, one.shown, signal)).answer.rows;
      } catch (error) { // the answer stands without its curves
        if (error.name === "AbortError") throw error;
        reason = error.message;
      }
      return { ...one, ...found, rows, reason, side, device };
    } catch (error) {
      if (error.status === 404 && models[one.from].file && !again) { // it went meanwhile: others had to have room
        models[one.from].sha256 = null;
        return answer_side(side, signal, true);
      }
      throw error;
    }
  }

  async function start() {
    stop();
    const control = new AbortController();
    const mine = { control, jobs: new Set() };
    going = mine;
    at("trouble").textContent = at("message").textContent = "";
    at("stages").replaceChildren();
    at("work").hidden = false;
    at("progress").hidden = true;
    at("cancel").disabled = false;
    const focused = document.activeElement;
    try {
      const sides = at("beside").getAttribute("aria-expanded") === "true" ? ["a", "b"] : ["a"];
      const found = [];
      for (const side of sides) found.push(await answer_side(side, control.signal)); // one file is sent once
      draw(found);
      write();
      at("message").textContent = "answered";
      at("work").hidden = true;
      if (focused === at("ask") || focused === document.body) at("answer").focus({ preventScroll: true });
      at("answer").scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (going !== mine) return; // another question is being asked
      if (error.name === "AbortError") at("message").textContent = "cancelled";
      else at("trouble").textContent = error instanceof Refused ? `${error.message}\n${error.hint}` : `the page is not reached: ${error.message}\nIs dippm ui still running?`;
      at("work").hidden = error.name === "AbortError";
    } finally {
      if (going === mine) {
        going = null;
        at("cancel").disabled = true;
      }
    }
  }

  function stop() {
    if (!going) return;
    for (const id of going.jobs) fetch(`/predict/jobs/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
    going.control.abort();
  }

  function forget(side) {
    const { sha256 } = models[side];
    if (sha256) fetch(`/predict/models/${sha256}`, { method: "DELETE", keepalive: true }).catch(() => {});
    models[side] = {};
  }

  // The answer.
  const VALUES = [
    ["latency", "latency_ms", "ms"], ["memory", "memory_mb", "MB"], ["energy of a batch", "energy_j", "J"],
    ["power", "power_w", "W"],
  ];

  function panel(title, ...parts) {
    const found = make("section", null, "panel");
    found.append(make("h2", title), ...parts.filter(Boolean));
    return found;
  }

  function draw(found) {
    drawn = [];
    const where = at("answer");
    where.replaceChildren(
      values(found), memory(found), pair(curves(found)), pair(found.map(holds)), pair(found.map(flame)),
      pair(found.map(along)),
    );
    again();
  }

  function pair(parts) {
    const found = make("div", null, "pair");
    found.append(...parts.filter(Boolean));
    return found;
  }

  const called = (one) => `${one.shown} · ${one.given.device}${one.mig ? ` ${one.mig}` : ""} · batch ${one.batch}`;

  function values(found) {
    const table = make("table", null, "values");
    const head = table.createTHead().insertRow();
    head.append(make("td"), ...found.map((one) => {
      const cell = make("th", called(one));
      cell.scope = "col";
      return cell;
    }));
    if (found.length > 1) head.append(make("th", "second to first"));
    const body = table.createTBody();
    const cards = make("dl", null, "cards");
    function line(name, cells, ratio) {
      if (found.length === 1) {
        const card = make("div");
        const value = make("dd");
        value.append(...cells[0].childNodes);
        card.append(make("dt", name), value);
        cards.append(card);
        return;
      }
      const row = body.insertRow();
      const first = make("th", name);
      first.scope = "row";
      row.append(first, ...cells);
      if (found.length > 1) row.append(make("td", ratio));
    }
    for (const [name, key, unit] of VALUES) {
      const cells = found.map(({ answer }) => {
        const cell = make("td");
        if (answer[key] === null) {
          cell.append(make("span", answer.absent[key] || "absent", "absent"));
          return cell;
        }
        cell.append(make("span", `${show(answer[key])} ${unit}`, "big"));
        const range = answer.intervals[key];
        if (range) cell.append(make("small", `${show(range.low)} – ${show(range.high)}, ${Math.round(100 * range.coverage)} %`));
        return cell;
      });
      const [one, other] = found.map(({ answer }) => answer[key]);
      line(name, cells, one && other ? `× ${show(other / one)}` : "");
    }
    line("throughput", found.map(({ answer, batch }) => make("td", answer.latency_ms ? `${show(1000 * batch / answer.latency_ms)} per second` : "–")), "");
    line("smallest slice", found.map(({ answer }) => make("td", answer.mig || answer.absent.mig || "none")), "");
    line("fits", found.map(({ answer }) => {
      const cell = make("td");
      if (answer.fits === null) cell.append(make("span", answer.absent.fits || "not known", "absent"));
      else cell.append(make("span", answer.fits ? "yes" : "no", answer.fits ? "fit" : "unfit"));
      if (answer.memory_bound_mb !== null) cell.append(make("small", `99 % bound ${show(answer.memory_bound_mb)} of ${show(answer.capacity_mb)} MB`));
      return cell;
    }), "");
    const scroll = make("div", null, "scroll");
    scroll.tabIndex = 0;
    scroll.append(table);
    const notes = make("ul", null, "notes");
    for (const one of found) {
      for (const words of one.answer.warnings) {
        const row = make("li", found.length > 1 ? `${called(one).replace(/ · batch.*/, "")}: ` : "");
        words.split("`").forEach((part, place) => row.append(place % 2 ? make("code", part) : part));
        notes.append(row);
      }
    }
    const one = found.length === 1;
    return panel(one ? called(found[0]) : "Answer", one ? cards : scroll, notes.childElementCount ? notes : null);
  }

  function memory(found) {
    const parts = found.map((one) => {
      const { answer } = one;
      if (!answer.memory_parts) return null;
      const most = Math.max(...found.map((o) => Math.max(o.answer.capacity_mb || 0, o.answer.memory_bound_mb || 0)));
      const kept = PARTS.filter(([key]) => answer.memory_parts[key] > 0);
      const box = make("div");
      if (found.length > 1) box.append(make("h3", called(one)));
      const nearest = Math.max(answer.memory_bound_mb || 0, answer.memory_mb);
      const capacity = Math.max(answer.capacity_mb || 0, nearest);
      for (const [words, whole, width] of [["whole", capacity, capacity / most], ["nearer", nearest, 1]]) {
        const bar = make("div", null, "bar-of");
        bar.style.width = `calc(${100 * width}% - 2px)`;
        bar.setAttribute("role", "img");
        bar.setAttribute("aria-label", `memory by part, ${words}: ${kept.map(([key, name]) => `${name} ${show(answer.memory_parts[key])} MB`).join(", ")}`);
        for (const [key, name] of kept) {
          const part = make("i");
          part.style.width = `${100 * answer.memory_parts[key] / whole}%`;
          part.style.background = colour(PARTS.findIndex((o) => o[0] === key));
          part.title = `${name} ${show(answer.memory_parts[key])} MB`;
          bar.append(part);
        }
        for (const [name, value] of [["bound", answer.memory_bound_mb], ["limit", answer.capacity_mb]]) {
          if (!value || value >= whole) continue;
          const mark = make("i", null, name);
          mark.style.left = `${100 * value / whole}%`;
          bar.append(mark);
        }
        box.append(bar, make("p", words === "nearer" ? `the same, up to the 99 % bound, ${show(whole)} MB` : `${one.mig || one.given.device} has ${show(answer.capacity_mb)} MB; dashed: the 99 % bound`, "note"));
      }
      box.append(keys(kept.map(([key, name]) => [colour(PARTS.findIndex((o) => o[0] === key)), `${name} ${show(answer.memory_parts[key])} MB`])));
      return box;
    });
    return parts.some(Boolean) ? panel("Memory by part", ...parts) : null;
  }

  function keys(rows) {
    const list = make("ul", null, "keys");
    for (const [paint, words] of rows) {
      const row = make("li");
      const swatch = make("span", null, "swatch");
      swatch.style.background = paint;
      row.append(swatch, words);
      list.append(row);
    }
    return list;
  }

  const good = (row, slice) => !row.error && row.slice === slice && row.latency_ms && row.fits !== false;

  function curves(found) {
    const series = [];
    for (const one of found) {
      const slices = [...new Set(one.rows.map((row) => row.slice))];
      const drawn_slices = found.length > 1 ? slices.slice(0, 1) : slices;
      for (const slice of drawn_slices) {
        const points = one.rows.filter((row) => good(row, slice)).map((row) => ({ x: row.batch, y: row.latency_ms, low: row.latency_ms_low, high: row.latency_ms_high }));
        const name = found.length > 1 ? called(one).replace(/ · batch.*/, "") : slice || one.given.device;
        if (points.length) series.push({ name, points, band: slice === slices[0], paint: colour(series.length) });
      }
    }
    if (!series.length) return [panel("Over batch", make("p", found[0].reason || "no batch of those drawn fits", "absent"))];
    const asked = found[0].batch;
    const speed = series.map((one) => ({
      ...one,
      points: one.points.map((p) => ({ x: p.x, y: 1000 * p.x / p.y, low: p.high && 1000 * p.x / p.high, high: p.low && 1000 * p.x / p.low })),
    }));
    return [plot("Latency over batch", "ms", series, asked), plot("Throughput over batch", "per second", speed, asked)];
  }

  function plot(title, unit, series, asked) {
    const frame = make("div", null, "plot");
    drawn.push(() => frame.replaceChildren(lines(title, unit, series, asked, frame.clientWidth || 600)));
    const note = make("p", `A line ends where the memory does. Shaded: the interval of the first. Dashed: batch ${asked}.`, "note");
    const whole = make("details");
    whole.append(make("summary", "As numbers"), numbers(unit, series));
    return panel(title, frame, keys(series.map((one) => [one.paint, one.name])), note, whole);
  }

  function numbers(unit, series) {
    const table = make("table");
    const head = table.createTHead().insertRow();
    head.append(make("th", "batch"), ...series.map((one) => make("th", `${one.name}, ${unit}`)));
    const body = table.createTBody();
    for (const x of [...new Set(series.flatMap((one) => one.points.map((p) => p.x)))].sort((a, b) => a - b)) {
      const row = body.insertRow();
      row.append(make("th", x), ...series.map((one) => make("td", show((one.points.find((p) => p.x === x) || {}).y), "number")));
    }
    const scroll = make("div", null, "scroll");
    scroll.tabIndex = 0;
    scroll.append(table);
    return scroll;
  }

  // Both axes are logarithmic: batches are doubled.
  function lines(title, unit, series, asked, width) {
    const height = 260, left = 52, right = 20, top = 10, bottom = 34;
    const all = series.flatMap((one) => one.points.flatMap((p) => (one.band ? [p.y, p.low || p.y, p.high || p.y] : [p.y])));
    const xs = series.flatMap((one) => one.points.map((p) => p.x));
    const span = (list) => {
      const [low, high] = [Math.log10(Math.min(...list)), Math.log10(Math.max(...list))];
      return high - low < 0.05 ? [low - 0.1, high + 0.1] : [low, high];
    };
    const [x0, x1] = span(xs), [y0, y1] = span(all);
    const px = (x) => left + (width - left - right) * (Math.log10(x) - x0) / (x1 - x0);
    const py = (y) => height - bottom - (height - top - bottom) * (Math.log10(y) - y0) / (y1 - y0);
    const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title}, ${unit}: ${series.map((one) => one.name).join(", ")}` });
    const ticks = [];
    for (let e = Math.floor(y0); e <= Math.ceil(y1); e += 1) {
      for (const m of y1 - y0 > 2.5 ? [1] : [1, 2, 5]) {
        const value = m * 10 ** e;
        if (Math.log10(value) >= y0 - 1e-9 && Math.log10(value) <= y1 + 1e-9) ticks.push(value);
      }
    }
    for (const value of ticks) {
      svg.append(drawing("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }));
      svg.append(drawing("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, show(value)));
    }
    let last = -1e9;
    for (const value of [...new Set(xs)].sort((a, b) => a - b)) {
      if (px(value) - last < 34) continue;
      last = px(value);
      svg.append(drawing("line", { class: "grid", x1: px(value), x2: px(value), y1: top, y2: height - bottom }));
      svg.append(drawing("text", { x: px(value), y: height - bottom + 15, "text-anchor": "middle" }, value));
    }
    svg.append(drawing("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "batch"));
    svg.append(drawing("text", { x: 2, y: height - 4 }, unit));
    if (xs.includes(asked)) svg.append(drawing("line", { class: "asked", x1: px(asked), x2: px(asked), y1: top, y2: height - bottom }));
    const path = (points, key) => points.map((p) => `${px(p.x).toFixed(1)},${py(p[key]).toFixed(1)}`);
    for (const one of series) {
      if (one.band && one.points.every((p) => p.low && p.high)) {
        const around = [...path(one.points, "low"), ...path(one.points, "high").reverse()].join(" ");
        svg.append(drawing("polygon", { class: "band", points: around, style: `fill:${one.paint}` }));
      }
      svg.append(drawing("polyline", { class: "line", points: path(one.points, "y").join(" "), style: `stroke:${one.paint}` }));
      for (const p of one.points) {
        const dot = drawing("circle", { cx: px(p.x), cy: py(p.y), r: 3, style: `fill:${one.paint}` });
        dot.append(drawing("title", {}, `${one.name}, batch ${p.x}: ${show(p.y)} ${unit}${p.low ? `, ${show(p.low)} – ${show(p.high)}` : ""}`));
        svg.append(dot);
      }
    }
    return svg;
  }

  function holds(one) {
    const slices = [...new Set(one.rows.map((row) => row.slice))];
    if (!slices.length) return null;
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const words of ["slice", "batch", "memory, MB", "latency there, ms", "per second"]) head.append(make("th", words));
    const body = table.createTBody();
    const largest = Math.max(...one.rows.map((row) => row.batch));
    for (const slice of slices) {
      const rows = one.rows.filter((row) => good(row, slice));
      const best = rows.at(-1);
      const any = one.rows.find((row) => row.slice === slice);
      const words = best ? `${best.batch.toLocaleString("en")}${best.batch === largest ? " or more" : ""}` : "none";
      const row = body.insertRow();
      row.append(make("th", slice || `the whole ${one.given.device}`), make("td", words, "number"), make("td", show(any.capacity_mb), "number"),
        make("td", best ? show(best.latency_ms) : "–", "number"), make("td", best ? show(1000 * best.batch / best.latency_ms) : "–", "number"));
    }
    const scroll = make("div", null, "scroll");
    scroll.tabIndex = 0;
    scroll.append(table);
    return panel(`The largest batch drawn that each slice holds: ${called(one).replace(/ · batch.*/, "")}`, scroll);
  }

  // Modules as boxes whose width is their share of the time; below a box is what it consists of.
  const MOST_BOXES = 150, DEEPEST = 7, ROW_REM = 1.65;

  function flame(one) {
    const { tree } = one.answer;
    if (!tree || !tree.time_ms) return null;
    const frame = make("div", null, "flame");
    const said = make("p", null, "said");
    said.setAttribute("aria-live", "polite");
    const words = (node) => `${node.path || "the whole model"}: ${show(node.time_ms)} ms, ${(100 * node.time_ms / tree.time_ms).toFixed(1)} % of the time${node.energy_j ? `, ${show(node.energy_j)} J` : ""}, ${show(node.macs / 1e6)} million MACs`;
    let top = tree;
    function fill(focus) {
      frame.replaceChildren();
      let count = 0, deepest = 0;
      const place = (node, x, width, depth) => {
        if (width < 0.004 || depth > DEEPEST || count >= MOST_BOXES) return;
        count += 1;
        deepest = Math.max(deepest, depth);
        const box = make("button", node.name || node.path);
        box.type = "button";
        box.tabIndex = depth ? -1 : 0;
        box.style.left = `${100 * x}%`;
        box.style.width = `calc(${100 * width}% - 1px)`;
        box.style.top = `${depth * ROW_REM}rem`;
        box.style.setProperty("--heat", `${Math.round(4 + 40 * node.time_ms / tree.time_ms)}%`);
        box.title = words(node);
        box.setAttribute("aria-label", `${box.textContent}, ${words(node)}`);
        for (const event of ["focus", "mouseenter"]) box.addEventListener(event, () => { said.textContent = words(node); });
        box.addEventListener("click", () => { top = node === top ? tree : node; fill(true); });
        frame.append(box);
        let next = x;
        for (const child of node.children) {
          const share = node.time_ms ? width * child.time_ms / node.time_ms : 0;
          place(child, next, share, depth + 1);
          next += share;
        }
      };
      place(top, 0, 1, 0);
      frame.style.height = `${(deepest + 1) * ROW_REM}rem`;
      if (focus) frame.querySelector("button").focus();
    }
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", "modules; arrow keys go from one to the next");
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const boxes = [...frame.children];
      const next = boxes[boxes.indexOf(document.activeElement) + step];
      if (next) next.focus();
    });
    fill(false);
    said.textContent = "A box is a module, as wide as its share of the time. Press one to look into it, and once more to go back; arrow keys go from one to the next.";
    const leaves = [];
    const walk = (node) => (node.children.length ? node.children.forEach(walk) : leaves.push(node));
    walk(tree);
    const list = make("ol");
    for (const node of leaves.sort((a, b) => b.time_ms - a.time_ms).slice(0, 10)) list.append(make("li", words(node)));
    const costliest = make("details");
    costliest.append(make("summary", "The ten costliest"), list);
    return panel(`Where the time goes: ${called(one)}`, frame, said, costliest);
  }

  function along(one) {
    const { answer } = one;
    const row = make("div", null, "row");
    const stem = one.shown.replace(/[^A-Za-z0-9_.-]+/g, "-");
    const { html, ...document_ } = answer;
    for (const [label, name, kind, text] of [
      ["JSON", `${stem}.json`, "application/json", () => JSON.stringify(document_, null, 1)],
      ["HTML", `${stem}.html`, "text/html", () => html],
    ]) {
      const button = make("button", `Take ${label} along`);
      button.type = "button";
      button.dataset.take = label;
      button.addEventListener("click", () => {
        const link = make("a");
        link.href = URL.createObjectURL(new Blob([text()], { type: kind }));
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
      row.append(button);
    }
    const parts = [];
    for (const [title, text] of [["Command", one.command], ["Python", one.python], ["Check it on the GPU", answer.verify]]) {
      parts.push(make("h3", title));
      if (!text) {
        parts.push(make("p", (answer.absent || {}).verify || "no command", "absent"));
        continue;
      }
      const box = make("pre", text);
      const copy = make("button", "Copy");
      copy.type = "button";
      copy.setAttribute("aria-label", `Copy: ${title}`);
      copy.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text);
          at("message").textContent = "copied";
        } catch (_) { // without TLS a browser gives no clipboard to others' machines
          getSelection().selectAllChildren(box);
          at("message").textContent = "selected: copy it with Ctrl+C";
        }
      });
      parts.push(box, copy);
    }
    return panel(`The same elsewhere: ${called(one)}`, row, ...parts);
  }

  function again() {
    for (const one of drawn) one();
  }

  // The form.
  function fill(id, rows, chosen) {
    at(id).replaceChildren(...rows.map(([value, label]) => {
      const found = make("option", label);
      found.value = value;
      return found;
    }));
    if (chosen !== undefined && rows.some(([value]) => value === chosen)) at(id).value = chosen;
  }

  function fill_slices(side) {
    const device = options.devices.find((one) => one.name === at(`device-${side}`).value);
    const rows = device ? device.slices.map((one) => [one.name, `${one.name}, ${one.memory_mb.toLocaleString("en")} MB`]) : [];
    fill(`mig-${side}`, [["", rows.length ? "the whole GPU" : "has none"], ...rows]);
    at(`mig-${side}`).disabled = !rows.length;
  }

  function choose(side, file) {
    forget(side);
    const drop = document.querySelector(`[data-side="${side}"] [data-said]`);
    if (file) {
      models[side] = { file };
      at(`name-${side}`).value = "";
      drop.textContent = `${file.name}, ${show(file.size / 2 ** 20)} MB`;
    } else {
      at(`file-${side}`).value = "";
      drop.textContent = side === "a" ? "Drop a model file here, or choose one" : "The same model, or another file";
    }
    at("remove").hidden = !models.a.file && !models.b.file;
  }

  function beside(on) {
    document.querySelector('[data-side="b"]').hidden = !on;
    at("beside").setAttribute("aria-expanded", String(on));
    at("beside").textContent = on ? "Ask about one alone" : "Hold another beside it";
  }

  const KEPT = ["name-a", "device-a", "mig-a", "name-b", "device-b", "mig-b", "batch", "precision", "phase", "optimizer", "mode", "input"];

  function write() {
    const found = new URLSearchParams();
    const two = at("beside").getAttribute("aria-expanded") === "true";
    for (const id of KEPT) if (at(id).value && !at(id).disabled && (two || !id.endsWith("-b"))) found.set(id, at(id).value);
    if (two) found.set("beside", "1");
    history.replaceState(null, "", `#${found}`);
  }

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    beside(given.has("beside"));
    for (const id of KEPT) {
      if (!given.has(id)) continue;
      const place = at(id);
      const before = place.value;
      place.value = given.get(id).slice(0, 2000);
      if (place.tagName === "SELECT" && place.selectedIndex < 0) place.value = before;
      if (id.startsWith("device-")) fill_slices(id.slice(-1));
    }
  }

  async function arrive() {
    try {
      options = await call("GET", "options");
    } catch (error) {
      at("trouble").textContent = `${error.message}\n${error.hint || "Is dippm ui still running?"}`;
      return;
    }
    const names = options.devices.map((one) => [one.name, `${one.name}${one.kind === "cpu" ? "" : `, ${show(one.memory_mb / 1024)} GB`}`]);
    for (const side of ["a", "b"]) {
      fill(`device-${side}`, names, side === "a" ? "A100-40GB" : "H100-SXM-80GB");
      fill_slices(side);
      at(`device-${side}`).addEventListener("change", () => fill_slices(side));
      at(`file-${side}`).addEventListener("change", () => { if (at(`file-${side}`).files.length) choose(side, at(`file-${side}`).files[0]); });
      at(`name-${side}`).addEventListener("input", () => { if (models[side].file) choose(side, null); });
      const drop = document.querySelector(`[data-side="${side}"] .drop`);
      drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
      drop.addEventListener("dragleave", () => drop.classList.remove("over"));
      drop.addEventListener("drop", (event) => {
        event.preventDefault();
        drop.classList.remove("over");
        const { files } = event.dataTransfer;
        if (files.length > 1) at("trouble").textContent = "several files were dropped\nDrop one; a folder as a zip.";
        else if (files.length) choose(side, files[0]);
      });
    }
    const plain = (list) => list.map((one) => [one, one]);
    fill("precision", plain(options.precisions), "fp32");
    fill("phase", plain(options.phases), "inference");
    runtimes = options.runtimes.filter((one) => one !== "pytorch");
    fill("mode", plain([...options.modes, ...runtimes]), "eager");
    fill("optimizer", plain(options.optimizers), "sgd");
    const phase = () => { at("optimizer").disabled = at("phase").value === "inference"; };
    at("phase").addEventListener("change", phase);
    read();
    phase();
    document.body.dataset.ready = "";
  }

  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // beside the field, a browser would open the file
  at("form").addEventListener("submit", (event) => { event.preventDefault(); start(); });
  at("cancel").addEventListener("click", stop);
  at("remove").addEventListener("click", () => { choose("a", null); choose("b", null); });
  at("beside").addEventListener("click", () => beside(at("beside").getAttribute("aria-expanded") !== "true"));
  window.addEventListener("resize", again);
  window.addEventListener("pagehide", () => { stop(); forget("a"); forget("b"); });

  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); }); // its file is forgotten

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function scheme() {
    const chosen = at("scheme").value;
    document.documentElement.dataset.scheme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
  }
  at("scheme").addEventListener("change", scheme);
  dark.addEventListener("change", scheme);
  scheme();
  arrive();
})();
