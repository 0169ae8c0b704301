// What is set on the page, its address, its controls and its table: plain HTML, filled as text.
(function () {
  "use strict";

  const plain = {
    view: { name: "runs", run: "" },
    settings: {
      smoothing: 0, alignment: "run", axis: "time", grouping: "single", show: ["rates", "prediction"],
      selected: [], hidden: [], seen: null,
    },
    filters: {
      search: "", status: "", condition: "", experiments: [], workloads: [], columns: [], sort: "",
      by: "", opened: [], first: 0,
    },
    streams: [],
    zooms: {},
  };
  const VIEWS = ["runs", "charts", "compare", "run"];
  const MOST_IN_ADDRESS = 400; // runs: more make an address that mail programs cut
  const state = structuredClone(plain);
  let automatic = true; // streams are those that the server offers, until somebody chooses
  let arrived = false;
  const told = { listed: null, offered: null, lines: null };

  const at = (id) => document.getElementById(id);
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

  function set(id, data) {
    window.dash_clientside.set_props(id, { data });
  }

  function put(part, change) {
    const now = Array.isArray(change) ? change : Object.assign({}, state[part], change);
    if (same(now, state[part])) return;
    const moves = part === "view";
    state[part] = now;
    set(part, now);
    write(moves);
    reflect();
  }

  // The address: all that differs from what a page begins with.
  const SHORT = [
    ["settings", "smoothing", "smooth"], ["settings", "alignment", "align"],
    ["settings", "axis", "axis"], ["settings", "grouping", "lines"],
    ["filters", "search", "q"], ["filters", "status", "status"], ["filters", "condition", "where"],
    ["filters", "sort", "sort"], ["filters", "by", "by"], ["filters", "first", "first"],
  ];
  const LISTS = [
    ["filters", "experiments", "experiment"], ["filters", "columns", "column"],
    ["filters", "opened", "open"], ["settings", "hidden", "hidden"],
  ];

  function address(view) {
    const found = new URLSearchParams();
    found.set("view", view.name);
    if (view.name === "run") found.set("run", view.run);
    for (const [part, key, name] of SHORT) {
      if (state[part][key] !== plain[part][key]) found.set(name, state[part][key]);
    }
    for (const [part, key, name] of LISTS) state[part][key].forEach((one) => found.append(name, one));
    for (const pair of state.filters.workloads) found.append("workload", JSON.stringify(pair));
    if (!same(state.settings.show, plain.settings.show)) found.set("show", state.settings.show.join(","));
    if (state.settings.seen) found.set("x", state.settings.seen.join(","));
    const runs = state.settings.selected;
    if (runs.length && runs.length <= MOST_IN_ADDRESS) found.set("runs", runs.join(","));
    if (!automatic) {
      if (!state.streams.length) found.append("stream", "");
      state.streams.forEach((one) => found.append("stream", one));
    }
    for (const [stream, zoom] of Object.entries(state.zooms)) {
      if (zoom.y || zoom.log) found.append("zoom", JSON.stringify([stream, zoom.y || null, !!zoom.log]));
    }
    return "#" + found.toString();
  }

  function write(moves) {
    if (!arrived) return;
    const text = address(state.view);
    if (text === location.hash) return;
    history[moves ? "pushState" : "replaceState"](null, "", text);
  }

  function numbers(text) {
    const found = String(text).split(",").map(Number);
    return found.length === 2 && found.every(Number.isFinite) && found[0] !== found[1] ? found : null;
  }

  function parsed(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      return null;
    }
  }

  function one_of(value, options, otherwise) {
    return options.includes(value) ? value : otherwise;
  }

  // What an address says; what is no value of a setting is left as a page begins with it.
  function read(text) {
    const given = new URLSearchParams(text.replace(/^#/, ""));
    const found = structuredClone(plain);
    found.view = { name: one_of(given.get("view"), VIEWS, "runs"), run: given.get("run") || "" };
    for (const [part, key, name] of SHORT) {
      if (!given.has(name)) continue;
      const value = given.get(name).slice(0, 500);
      const number = Math.min(1e9, Math.floor(Number(value)));
      if (typeof plain[part][key] === "string") found[part][key] = value;
      else if (Number.isFinite(number) && number >= 0) found[part][key] = number;
    }
    const settings = found.settings;
    settings.smoothing = Math.min(99, settings.smoothing);
    settings.alignment = one_of(settings.alignment, ["run", "workload", "clock"], "run");
    settings.axis = one_of(settings.axis, ["time", "step"], "time");
    settings.grouping = one_of(settings.grouping, ["single", "merged"], "single");
    for (const [part, key, name] of LISTS) found[part][key] = given.getAll(name).map((o) => o.slice(0, 4000));
    found.filters.columns = found.filters.columns.slice(0, 100).map((o) => o.slice(0, 500));
    const is_pair = (o) => Array.isArray(o) && o.length === 2 && o.every((n) => typeof n === "string");
    found.filters.workloads = given.getAll("workload").map(parsed).filter(is_pair);
    if (given.has("show")) settings.show = given.get("show").split(",").filter((o) => ["rates", "spans", "prediction"].includes(o));
    if (given.has("x")) settings.seen = numbers(given.get("x"));
    settings.selected = (given.get("runs") || "").split(",").filter((o) => /^[0-9a-f]{32}$/.test(o));
    const streams = given.getAll("stream");
    found.streams = [...new Set(streams.filter(Boolean).map((o) => o.slice(0, 500)))].slice(0, 50);
    for (const held of given.getAll("zoom").map(parsed)) {
      if (!Array.isArray(held) || typeof held[0] !== "string") continue;
      found.zooms[held[0]] = { y: held[1] ? numbers(held[1]) : null, log: held[2] === true };
    }
    return { found, automatic: !given.has("stream") };
  }

  function take(found, is_automatic) {
    automatic = is_automatic;
    for (const part of Object.keys(plain)) {
      if (same(found[part], state[part]) && arrived) continue;
      state[part] = found[part];
      set(part, state[part]);
    }
    arrived = true;
    reflect();
    offer();
  }

  function arrive() {
    const { found, automatic: is_automatic } = read(location.hash);
    if (arrived && location.hash === address(state.view)) return;
    take(found, is_automatic);
  }

  // Everything on the page that shows what is set.
  function reflect() {
    const { view, settings, filters } = state;
    const spans = settings.show.includes("spans");
    if (spans !== "spans" in document.body.dataset) {
      if (spans) document.body.dataset.spans = "";
      else delete document.body.dataset.spans;
      window.dispatchEvent(new Event("resize"));
    }
    if (document.body.dataset.view !== view.name) {
      document.body.dataset.view = view.name;
      const narrow = window.innerWidth <= 760;
      at("list-details").open = view.name === "runs" || (view.name === "charts" && !narrow);
      window.dispatchEvent(new Event("resize"));
    }
    for (const link of document.querySelectorAll("nav a[data-go]")) {
      link.href = address({ name: link.dataset.go, run: "" });
      if (link.dataset.go === view.name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    for (const id of ["axis", "alignment", "grouping", "smoothing"]) at(id).value = settings[id];
    at("smoothing-note").value = settings.smoothing + " %";
    for (const id of ["search", "condition", "status", "by"]) {
      if (document.activeElement !== at(id) || at(id).tagName === "SELECT") at(id).value = filters[id];
    }
    for (const box of at("show").querySelectorAll("input")) box.checked = settings.show.includes(box.value);
    tick_all();
  }

  function tick_all() {
    const on = new Set(state.settings.selected);
    for (const box of at("runs").querySelectorAll("tbody input")) {
      const held = box.uuids.filter((uuid) => on.has(uuid)).length;
      box.checked = held === box.uuids.length && held > 0;
      box.indeterminate = held > 0 && held < box.uuids.length;
    }
    const { listed } = told;
    if (listed) at("runs-note").textContent = `${listed.note}; ${on.size.toLocaleString("en")} selected`;
    const swatches = colours();
    for (const swatch of at("runs").querySelectorAll(".swatch")) swatch.style.background = swatches[swatch.dataset.run] || "";
  }

  function colours() {
    const { lines } = told;
    const found = {};
    if (lines) lines.rows.forEach(([key], place) => { found[key] = lines.colours[place % lines.colours.length]; });
    return found;
  }

  // Lists of boxes.
  function boxes(id, rows, on, change) {
    const list = at(id);
    const focused = document.activeElement && list.contains(document.activeElement) ? document.activeElement.value : null;
    list.replaceChildren(
      ...rows.map(([value, label, colour]) => {
        const row = document.createElement("label");
        const box = document.createElement("input");
        box.type = "checkbox";
        box.value = value;
        box.checked = on(value);
        box.addEventListener("change", () => change(value, box.checked));
        row.append(box);
        if (colour) {
          const swatch = document.createElement("span");
          swatch.className = "swatch";
          swatch.style.background = colour;
          row.append(swatch);
        }
        row.append(" " + label);
        row.title = label;
        if (value === focused) setTimeout(() => box.focus());
        return row;
      }),
    );
  }

  function toggled(list, value, is_on) {
    const rest = list.filter((one) => !same(one, value));
    return is_on ? rest.concat([value]) : rest;
  }

  // The table of runs.
  function cell(kind, text, name) {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  function run_link(uuid, label) {
    const link = cell("a", label);
    link.href = address({ name: "run", run: uuid });
    link.dataset.run = uuid;
    return link;
  }

  function header(listed) {
    const sort = state.filters.sort || "-started";
    const row = document.createElement("tr");
    const first = cell("th", "", "tick");
    first.append(cell("span", "selected", "hidden"));
    row.append(first);
    const named = [["name", "run", false], ...listed.columns];
    for (const [key, label, is_number] of named) {
      const head = cell("th", undefined, (key === "name" ? "name" : "more") + (is_number ? " number" : ""));
      head.scope = "col";
      const is_sorted = sort.replace(/^-/, "") === key;
      if (is_sorted) head.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      const button = cell("button", label + (is_sorted ? (sort.startsWith("-") ? " ↓" : " ↑") : ""));
      button.type = "button";
      button.dataset.sort = key;
      button.title = `sort by ${label}`;
      button.addEventListener("click", () => {
        const falling = is_sorted ? !sort.startsWith("-") : is_number;
        put("filters", { sort: (falling ? "-" : "") + key, first: 0 });
      });
      head.append(button);
      row.append(head);
    }
    const made = document.createElement("thead");
    made.append(row);
    return made;
  }

  function line(row, listed) {
    const made = document.createElement("tr");
    const is_group = row.group !== "";
    made.className = is_group ? "group" : row.status;
    const box = document.createElement("input");
    box.type = "checkbox";
    box.uuids = row.uuids;
    box.value = is_group ? row.group : row.uuids[0];
    box.setAttribute("aria-label", `select ${row.label}`);
    box.addEventListener("change", () => {
      const mine = new Set(row.uuids);
      const rest = state.settings.selected.filter((uuid) => !mine.has(uuid));
      put("settings", { selected: box.checked ? rest.concat(row.uuids) : rest });
    });
    const tick = cell("td", undefined, "tick");
    tick.append(box);
    const name = cell("th", undefined, "name");
    name.scope = "row";
    if (is_group) {
      const button = cell("button", (row.open ? "▾ " : "▸ ") + row.label);
      button.type = "button";
      button.setAttribute("aria-expanded", String(row.open));
      button.addEventListener("click", () => put("filters", { opened: toggled(state.filters.opened, row.group, !row.open) }));
      name.append(button);
    } else {
      const swatch = cell("span", undefined, "swatch");
      swatch.dataset.run = row.uuids[0];
      name.append(swatch, run_link(row.uuids[0], row.label));
      name.title = row.label;
      if (row.status !== "finished") name.append(cell("span", row.status, `badge ${row.status}`));
    }
    made.append(tick, name);
    row.cells.forEach((text, place) => {
      const made_cell = cell("td", text, "more" + (listed.columns[place][2] ? " number" : ""));
      if (listed.columns[place][0] === "status" && !is_group) made_cell.className += ` status ${row.status}`;
      made_cell.title = text;
      made.append(made_cell);
    });
    return made;
  }

  // What a control of the table is known by when the table was made anew; its arrow may be another.
  function mark(control) {
    return [control.value, control.dataset.sort, control.dataset.run, control.textContent.replace(/^[▾▸] /, "")];
  }

  function options(id, rows) {
    at(id).replaceChildren(...rows.map(([value, label]) => new Option(label, value)));
  }

  function draw_listed(listed) {
    if (!listed) return;
    const before = told.listed;
    told.listed = listed;
    at("condition-trouble").textContent = listed.trouble;
    const { filters } = state;
    const place = document.activeElement;
    const focused = place && at("runs").contains(place) ? mark(place) : null;
    if (listed.empty) {
      const help = cell("div", undefined, "empty");
      for (const text of listed.empty) help.append(cell(text.startsWith("$ ") ? "pre" : "p", text.replace(/^\$ /, "")));
      at("runs").replaceChildren(help);
    } else {
      const made = document.createElement("table");
      const body = document.createElement("tbody");
      body.append(...listed.rows.map((row) => line(row, listed)));
      made.append(header(listed), body);
      at("runs").replaceChildren(made);
    }
    if (focused) {
      const again = [...at("runs").querySelectorAll("input, button, a")].find(
        (o) => same(mark(o), focused) || (focused[1] && o.dataset.sort === focused[1]),
      );
      if (again) again.focus();
    }
    at("pages").hidden = listed.count <= listed.most;
    const last = Math.min(listed.first + listed.most, listed.count);
    at("rows-note").textContent = listed.count ? `${(listed.first + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${listed.count.toLocaleString("en")}` : "";
    at("earlier").disabled = listed.first === 0;
    at("later").disabled = last >= listed.count;
    if (!before || !same(before.by, listed.by)) options("by", listed.by);
    at("by").value = filters.by;
    boxes("experiments", listed.experiments, (o) => filters.experiments.includes(o), (value, on) =>
      put("filters", { experiments: toggled(state.filters.experiments, value, on), first: 0 }));
    boxes("workloads", listed.workloads, (o) => filters.workloads.some((p) => same(p, JSON.parse(o))), (value, on) =>
      put("filters", { workloads: toggled(state.filters.workloads, JSON.parse(value), on), first: 0 }));
    at("experiments-summary").textContent = "Experiments" + (filters.experiments.length ? ` (${filters.experiments.length})` : "");
    at("workloads-summary").textContent = "Workloads" + (filters.workloads.length ? ` (${filters.workloads.length})` : "");
    draw_columns();
    reflect();
  }

  function draw_columns() {
    const { listed } = told;
    if (!listed) return;
    const chosen = listed.columns.map(([key]) => key);
    const word = at("columns-search").value.toLowerCase();
    const fitting = listed.known.filter((key) => !chosen.includes(key) && key.toLowerCase().includes(word));
    const rows = [...chosen.filter((key) => key.toLowerCase().includes(word)), ...fitting].slice(0, 200);
    boxes("columns", rows.map((key) => [key, key]), (key) => chosen.includes(key), (key, on) =>
      put("filters", { columns: toggled(chosen, key, on) }));
  }

  // Streams and lines.
  function draw_offered(offered) {
    if (!offered) return;
    told.offered = offered;
    offer();
  }

  function offer() {
    const { offered } = told;
    if (!offered) return;
    if (automatic && state.view.name === "charts" && !same(state.streams, offered.usual)) put("streams", offered.usual);
    const rows = [...new Set([...state.streams, ...offered.streams])];
    at("streams-note").hidden = rows.length > 0;
    at("streams-summary").textContent = `Streams (${state.streams.length})`;
    boxes("streams", rows.map((key) => [key, key]), (key) => state.streams.includes(key), (key, on) => {
      automatic = false;
      put("streams", toggled(state.streams, key, on));
      offer();
    });
  }

  function draw_lines(lines) {
    if (!lines) return;
    told.lines = lines;
    const off = new Set(state.settings.hidden);
    boxes("legend", lines.rows.map(([key, label], place) => [key, label, lines.colours[place % lines.colours.length]]), (key) => !off.has(key), (key, on) =>
      put("settings", { hidden: toggled(state.settings.hidden, key, !on) }));
    const shown = lines.keys.filter((key) => !off.has(key)).length;
    const rest = lines.keys.length > lines.rows.length ? `, ${lines.rows.length} listed` : "";
    at("lines-summary").textContent = `Lines (${shown.toLocaleString("en")} of ${lines.keys.length.toLocaleString("en")}${rest})`;
    tick_all();
  }

  function draw_news(news) {
    if (!news) return;
    at("trouble").textContent = news.trouble;
    at("place").textContent = news.place;
  }

  function draw_chosen(chosen) {
    if (chosen) put("settings", { selected: [...new Set([...state.settings.selected, ...chosen])] });
  }

  function draw_loaded(loaded) {
    if (!loaded) return;
    at("message").textContent = loaded.message;
    if (!loaded.settings) return;
    const found = structuredClone(plain);
    for (const part of ["settings", "filters"]) Object.assign(found[part], loaded[part]);
    found.streams = loaded.streams;
    found.zooms = loaded.zooms;
    found.view = { name: "charts", run: "" };
    take(found, false);
    write(true);
  }

  function draw_answered(text) {
    if (text) at("message").textContent = text;
  }

  function go(name, run) {
    if (name === "charts" && !state.settings.selected.length) set("wanted", { newest: 10, at: Date.now() });
    put("view", { name, run: run || "" });
    offer();
    if (name !== "runs") window.scrollTo(0, 0);
  }

  function listen() {
    for (const id of ["axis", "alignment", "grouping"]) at(id).addEventListener("change", () => put("settings", { [id]: at(id).value, seen: null }));
    at("smoothing").addEventListener("change", () => put("settings", { smoothing: Number(at("smoothing").value) }));
    at("smoothing").addEventListener("input", () => { at("smoothing-note").value = at("smoothing").value + " %"; });
    for (const box of at("show").querySelectorAll("input")) {
      box.addEventListener("change", () => put("settings", { show: [...at("show").querySelectorAll("input:checked")].map((o) => o.value) }));
    }
    for (const id of ["status", "by"]) at(id).addEventListener("change", () => put("filters", { [id]: at(id).value, first: 0 }));
    let timer = 0;
    for (const id of ["search", "condition"]) {
      at(id).addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(() => put("filters", { search: at("search").value, condition: at("condition").value, first: 0 }), 300);
      });
    }
    at("columns-search").addEventListener("input", draw_columns);
    at("columns-reset").addEventListener("click", () => put("filters", { columns: [] }));
    at("select-all").addEventListener("click", () => set("wanted", { all: true, at: Date.now() }));
    at("select-none").addEventListener("click", () => put("settings", { selected: [] }));
    at("earlier").addEventListener("click", () => put("filters", { first: Math.max(0, told.listed.first - told.listed.most) }));
    at("later").addEventListener("click", () => put("filters", { first: told.listed.first + told.listed.most }));
    at("show-all").addEventListener("click", () => {
      const mine = new Set(told.lines ? told.lines.keys : []);
      put("settings", { hidden: state.settings.hidden.filter((key) => !mine.has(key)) });
    });
    at("hide-all").addEventListener("click", () => put("settings", { hidden: [...new Set([...state.settings.hidden, ...(told.lines ? told.lines.keys : [])])] }));
    at("save").addEventListener("click", () => set("saving", Date.now()));
    at("copy").addEventListener("click", () => {
      const many = state.settings.selected.length > MOST_IN_ADDRESS;
      const say = (text) => { at("message").textContent = text; };
      const note = many ? `an address holds ${MOST_IN_ADDRESS} runs at most: save the exploration, which holds all` : "the address is copied";
      if (many || !navigator.clipboard) say(many ? note : "copy the address from the browser's own field");
      else navigator.clipboard.writeText(location.href).then(() => say(note), () => say("the browser refused: copy the address from its own field"));
    });
    at("load").addEventListener("change", () => {
      const file = at("load").files[0];
      if (!file) return;
      file.text().then(
        (text) => set("given", { name: file.name.slice(0, 200), text: text.slice(0, 4 * 2 ** 20 + 1), at: Date.now() }),
        () => { at("message").textContent = `the browser cannot read ${file.name}`; },
      );
      at("load").value = "";
    });
    document.addEventListener("click", (event) => {
      const file = event.target.closest("button[data-artifact]");
      if (file) set("fetched", { run: state.view.run, name: file.dataset.artifact, at: Date.now() });
      const link = event.target.closest("[data-go], a[data-run]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (link.dataset.run) go("run", link.dataset.run);
      else go(link.dataset.go);
    });
    // A list that was opened closes where somebody goes on elsewhere.
    document.addEventListener("pointerdown", (event) => {
      for (const open of document.querySelectorAll("details.pop[open]")) if (!open.contains(event.target)) open.open = false;
      // Opened in another tab, the page of a run has what is set now, not when the table was made.
      const link = event.target.closest("a[data-run]");
      if (link) link.href = address({ name: "run", run: link.dataset.run });
    });
    document.addEventListener("keydown", (event) => {
      const open = event.key === "Escape" && event.target.closest && event.target.closest("details.pop[open]");
      if (open) {
        open.open = false;
        open.querySelector("summary").focus();
      }
    });
    window.addEventListener("popstate", arrive);
    window.addEventListener("hashchange", arrive);
  }

  // Called once, when Dash is ready to be told what is set.
  function start() {
    if (arrived) return;
    listen();
    arrive();
    at("scheme").addEventListener("change", () => set("dark", window.dippm_scheme(at("scheme").value)));
    set("dark", window.dippm_scheme(at("scheme").value));
  }

  function zoomed(stream, change) {
    const now = Object.assign({ y: null, log: false }, state.zooms[stream], change);
    put("zooms", { [stream]: now });
  }

  window.dippm_state = { state, put, set, zoomed, go };
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    state: { start, draw_listed, draw_offered, draw_lines, draw_news, draw_chosen, draw_loaded, draw_answered },
  });
})();
