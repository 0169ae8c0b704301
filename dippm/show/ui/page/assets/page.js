// What the browser does by itself with charts: zoom, pictures, colours.
(function () {
  "use strict";

  function plot(card) {
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
    in: ["x", (range) => scaled(range, 0.5)],
    out: ["x", (range) => scaled(range, 2)],
    left: ["x", (range) => moved(range, -0.25)],
    right: ["x", (range) => moved(range, 0.25)],
    higher: ["y", (range) => scaled(range, 0.5)],
    lower: ["y", (range) => scaled(range, 2)],
  };

  // x is that of all charts, y that of one.
  function look(stream, axis, range) {
    const { put, zoomed } = window.dippm_state;
    if (axis === "x") put("settings", { seen: range });
    else zoomed(stream, { y: range });
  }

  function dragged() {
    for (const { prop_id, value } of window.dash_clientside.callback_context.triggered) {
      if (!value) continue;
      const { stream } = JSON.parse(prop_id.slice(0, prop_id.lastIndexOf(".")));
      for (const axis of ["x", "y"]) {
        const name = axis + "axis";
        if (value[name + ".autorange"]) {
          look(stream, axis, null);
        } else if (value[name + ".range"] || value[name + ".range[0]"] !== undefined) {
          const ends = [value[name + ".range[0]"], value[name + ".range[1]"]];
          look(stream, axis, (value[name + ".range"] || ends).map(seconds));
        }
      }
    }
  }

  function pressed(stream, step, graph) {
    const { state, put, zoomed } = window.dippm_state;
    if (step === "reset") {
      put("settings", { seen: null });
      zoomed(stream, { y: null });
    } else if (step === "log") {
      zoomed(stream, { log: !(state.zooms[stream] || {}).log, y: null });
    } else if (graph) {
      const [axis, change] = steps[step];
      const before = axis === "x" ? state.settings.seen : (state.zooms[stream] || {}).y;
      look(stream, axis, change(before || seen(graph._fullLayout[axis + "axis"])));
    }
  }

  // As it stands there, with a title and the names of its lines.
  function picture(stream, format, graph) {
    const name = stream.replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-|-$/g, "") || "chart";
    const named = graph.data.filter((trace) => trace.showlegend !== false).length;
    const rows = Math.ceil(named / 3);
    const size = { width: Math.max(800, graph.offsetWidth), height: graph.offsetHeight + 50 + 20 * rows };
    const layout = Object.assign({}, graph.layout, {
      title: { text: graph.layout.meta.title, x: 0.02, xanchor: "left", font: { size: 16 } },
      showlegend: true,
      legend: { orientation: "h", yanchor: "top", y: -0.18, x: 0 },
      margin: { l: 70, r: 20, t: 50, b: 70 + 20 * rows },
      autosize: false,
      ...size,
    });
    const scale = format === "svg" ? 1 : 2;
    window.Plotly.downloadImage({ data: graph.data, layout }, { format, filename: name, scale, ...size });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-step], button[data-take]");
    const card = button && button.closest(".chart");
    if (!card) return;
    const { stream } = card.dataset;
    const graph = plot(card);
    const { step, take } = button.dataset;
    if (step) pressed(stream, step, graph);
    else if (["pdf", "csv", "json"].includes(take)) window.dippm_state.set("taken", { stream, kind: take, at: Date.now() });
    else if (graph) picture(stream, take, graph);
  });

  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function scheme(chosen) {
    const found = chosen === "auto" || !chosen ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.scheme = found;
    return found;
  }

  window.dippm_scheme = scheme;
  dark.addEventListener("change", function () {
    const value = scheme(document.getElementById("scheme").value);
    if (window.dash_clientside.set_props) window.dash_clientside.set_props("dark", { data: value });
  });
  scheme("auto");

  window.dash_clientside = Object.assign({}, window.dash_clientside, { page: { dragged } });
})();
