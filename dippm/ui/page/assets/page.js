// What the browser does by itself: zoom by keyboard, pictures, colours.
(function () {
  "use strict";

  function plot(id) {
    const keys = Object.keys(id).sort();
    const name = JSON.stringify(id, keys);
    const card = document.getElementById(name);
    return card && card.querySelector(".js-plotly-plot");
  }

  // Ends of a date axis come as text in UTC, without saying so; ours are seconds.
  function seconds(end) {
    return typeof end === "string" ? Date.parse(end.replace(" ", "T") + "Z") / 1000 : end;
  }

  function seen(axis) {
    return axis.range.map(axis.type === "date" ? seconds : Number);
  }

  function scaled(range, factor) {
    const middle = (range[0] + range[1]) / 2;
    return range.map((end) => middle + (end - middle) * factor);
  }

  function moved(range, part) {
    const by = (range[1] - range[0]) * part;
    return range.map((end) => end + by);
  }

  const steps = {
    "zoom-in": ["x", (range) => scaled(range, 0.5)],
    "zoom-out": ["x", (range) => scaled(range, 2)],
    "zoom-left": ["x", (range) => moved(range, -0.25)],
    "zoom-right": ["x", (range) => moved(range, 0.25)],
    "zoom-higher": ["y", (range) => scaled(range, 0.5)],
    "zoom-lower": ["y", (range) => scaled(range, 2)],
  };

  function dragged(before, relayout) {
    const found = Object.assign({}, before);
    for (const axis of ["x", "y"]) {
      const name = axis + "axis";
      if (relayout[name + ".autorange"]) {
        found[axis] = null;
      } else if (relayout[name + ".range"] || relayout[name + ".range[0]"] !== undefined) {
        const ends = [relayout[name + ".range[0]"], relayout[name + ".range[1]"]];
        found[axis] = (relayout[name + ".range"] || ends).map(seconds);
      }
    }
    return found;
  }

  function pressed(before, type, graph) {
    if (type === "zoom-reset") return { x: null, y: null };
    if (!graph) return before;
    const [axis, step] = steps[type];
    const range = before[axis] || seen(graph._fullLayout[axis + "axis"]);
    return Object.assign({}, before, { [axis]: step(range) });
  }

  // Dash calls once for all that happened since the last call: a button may come with a resize.
  function zoom(relayout) {
    const { no_update, callback_context } = window.dash_clientside;
    const before = arguments[arguments.length - 2] || {};
    const graph = plot(arguments[arguments.length - 1]);
    let found = before;
    for (const { prop_id, value } of callback_context.triggered) {
      if (!value) continue;
      const { type } = JSON.parse(prop_id.slice(0, prop_id.lastIndexOf(".")));
      found = type === "graph" ? dragged(found, relayout || {}) : pressed(found, type, graph);
    }
    return JSON.stringify(found) === JSON.stringify(before) ? no_update : found;
  }

  function picture(clicks, id) {
    const graph = plot(id);
    const cause = window.dash_clientside.callback_context.triggered_id;
    if (!clicks || !graph || !cause) return window.dash_clientside.no_update;
    const format = cause.type.replace("take-", "");
    const name = id.stream.replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-|-$/g, "") || "chart";
    const size = { width: graph.offsetWidth, height: graph.offsetHeight };
    const scale = format === "svg" ? 1 : 2;
    window.Plotly.downloadImage(graph, { format, filename: name, scale, ...size });
    return clicks;
  }

  function offered(options) {
    return (options || []).map((option) => option.value);
  }

  function same(some, others) {
    const known = new Set(others);
    return some.length === known.size && some.every((one) => known.has(one));
  }

  function keep(store, before, now) {
    if (JSON.stringify(before) !== JSON.stringify(now)) {
      window.dash_clientside.set_props(store, { data: now });
    }
  }

  // What each list shows as ticked: what differs from it was ticked by hand.
  const shown = { runs: [], legend: [] };

  function by_hand(box, ticked) {
    const news = !same(ticked, shown[box]);
    shown[box] = ticked;
    return news;
  }

  // What the list does not offer, runs of other experiments, stays selected.
  function tick_runs(ticked, options, selected) {
    if (!by_hand("runs", ticked)) return;
    const known = new Set(offered(options));
    const on = new Set(ticked);
    const kept = selected.filter((run) => !known.has(run) || on.has(run));
    const held = new Set(kept);
    keep("selected", selected, kept.concat(ticked.filter((run) => !held.has(run))));
  }

  function tick_legend(ticked, options, hidden) {
    if (!by_hand("legend", ticked)) return;
    const on = new Set(ticked);
    const known = new Set(offered(options));
    const off = [...known].filter((key) => !on.has(key));
    const kept = hidden.filter((key) => !known.has(key) || !on.has(key));
    const held = new Set(kept);
    keep("hidden", hidden, kept.concat(off.filter((key) => !held.has(key))));
  }

  function show(box, options, on, before) {
    const value = offered(options).filter(on);
    shown[box] = value;
    if (!same(value, before)) window.dash_clientside.set_props(box, { value });
  }

  function show_runs(options, selected, before) {
    const held = new Set(selected);
    show("runs", options, (run) => held.has(run), before);
  }

  function show_legend(options, hidden, before) {
    const off = new Set(hidden);
    show("legend", options, (key) => !off.has(key), before);
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function scheme(chosen) {
    const found = chosen === "auto" || !chosen ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.scheme = found;
    return found;
  }

  dark.addEventListener("change", function () {
    const chosen = document.querySelector("#scheme input:checked");
    const value = chosen ? chosen.value : "auto";
    if (window.dash_clientside.set_props) {
      window.dash_clientside.set_props("dark", { data: scheme(value) });
    }
  });
  document.documentElement.dataset.scheme = dark.matches ? "dark" : "light";

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    page: { zoom, picture, scheme, tick_runs, show_runs, tick_legend, show_legend },
  });
})();
