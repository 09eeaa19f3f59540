// The explorer of the report's page: a treemap to click into, a table to sort and search, two reports side by side. It reads
// the data in the page and nothing else; without it, the page is whole.
(() => {
  "use strict";
  const at = (id) => document.getElementById(id);
  const own = JSON.parse(at("report-data").textContent);
  const number = (n) => n.toLocaleString("en-US");
  const signed = (n) => (n > 0 ? "+" : n < 0 ? "−" : "±") + number(Math.abs(n));
  const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const state = { target: 0, query: "", sort: "bytes", falling: true, other: null };
  const keyOf = (row) => `${row.kind}/${row.name}`;

  // ------------------------------------------------------------------ the view: what is shown, by where we are

  // The path is in the address, so that the browser's own way back works: ["row", key] and ["node", name] by turns.
  const path = () => {
    try {
      const found = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "[]");
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  };
  const go = (steps) => {
    const hash = steps.length ? `#${encodeURIComponent(JSON.stringify(steps))}` : "#";
    if (location.hash === hash) show();
    else location.hash = hash;
  };
  const targetOf = (report) => {
    const name = own.targets[state.target].target;
    return report.targets.find((target) => target.target === name) ?? report.targets[0];
  };
  // Bytes of tensors alive at the peak of the largest arena that an operator's nodes have written.
  const memoryOf = (report, row) => {
    const arena = report.model.arenas.reduce((a, b) => (b.peak > (a?.peak ?? -1) ? b : a), undefined);
    const nodes = new Set(row.nodes);
    return (arena?.live ?? []).reduce((sum, tensor) => sum + (nodes.has(tensor.node) ? tensor.bytes : 0), 0);
  };
  const items = (report) => {
    const target = targetOf(report), steps = path(), [kind, name] = steps[steps.length - 1] ?? [];
    const rows = kind === "node" ? target.rows.filter((row) => row.nodes.includes(name)) : target.rows;
    const row = kind === "row" && target.rows.find((one) => keyOf(one) === name);
    if (kind === "row") {
      if (!row) return [];
      const found = row.symbols.map(({ names, bytes }) => ({ key: names[0], name: names.join(" = "), kind: row.kind, bytes }));
      const rest = row.bytes - found.reduce((sum, { bytes }) => sum + bytes, 0);
      return rest > 0 ? [...found, { key: "", name: "bytes without a symbol", kind: row.kind, bytes: rest }] : found;
    }
    return rows.map((one) => ({
      key: keyOf(one), name: one.name, kind: one.kind, bytes: one.bytes, nodes: one.nodes.length,
      memory: memoryOf(report, one), time: one.milliseconds, row: one,
      words: [one.name, ...one.users, ...one.nodes, ...one.symbols.flatMap(({ names }) => names)].join("\n").toLowerCase(),
    }));
  };
  const matching = (list) => {
    const query = state.query.trim().toLowerCase();
    return query ? list.filter((item) => (item.words ?? item.name.toLowerCase()).includes(query)) : list;
  };

  // ------------------------------------------------------------------ the treemap

  // One rectangle per item, in proportion to its bytes, laid in rows along the shorter side as long as that makes the worst
  // aspect ratio better (Bruls, Huizing, van Wijk: Squarified Treemaps, 2000).
  const squarify = (list, width, height) => {
    const placed = [], total = list.reduce((sum, { bytes }) => sum + bytes, 0);
    let left = 0, top = 0, first = 0;
    const scale = total ? (width * height) / total : 0;
    while (first < list.length) {
      const side = Math.min(width, height);
      let sum = 0, count = 0, worst = Infinity;
      while (first + count < list.length) {
        const next = sum + list[first + count].bytes * scale, thick = next / side;
        const sizes = [list[first].bytes * scale, list[first + count].bytes * scale];
        const ratio = Math.max(...sizes.map((area) => Math.max((thick * thick) / area, area / (thick * thick))));
        if (count && ratio > worst) break;
        [sum, worst, count] = [next, ratio, count + 1];
      }
      const thick = side ? sum / side : 0, wide = width >= height;
      let along = 0;
      for (const item of list.slice(first, first + count)) {
        const length = thick ? (item.bytes * scale) / thick : 0;
        placed.push(wide ? [item, left, top + along, thick, length] : [item, left + along, top, length, thick]);
        along += length;
      }
      if (wide) (left += thick), (width -= thick);
      else (top += thick), (height -= thick);
      first += count;
    }
    return placed;
  };
  const enter = (item) => item.row && go([...path(), ["row", item.key]]);
  const tile = ([item, x, y, width, height], whole) => {
    const words = `${item.name} ${number(item.bytes)} bytes, ${share(item.bytes, whole)}`;
    const button = make("button", { type: "button", className: `tile k-${item.kind}`, title: words, tabIndex: -1 });
    button.setAttribute("aria-label", words + (item.row ? ", open" : ""));
    Object.assign(button.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
    if (width > 44 && height > 22) button.append(make("span", {}, item.name));
    if (width > 44 && height > 38) button.append(" ", make("small", {}, number(item.bytes)));
    button.setAttribute("aria-disabled", String(!item.row)); // and can be focused all the same, to be read
    button.onclick = () => enter(item);
    return button;
  };
  const draw = (map, list) => {
    const held = map.contains(document.activeElement);
    const shown = list.filter(({ bytes }) => bytes > 0).sort((a, b) => b.bytes - a.bytes);
    const whole = shown.reduce((sum, { bytes }) => sum + bytes, 0);
    map.replaceChildren(...squarify(shown, map.clientWidth, map.clientHeight).map((box) => tile(box, whole)));
    const first = map.querySelector("button");
    if (first) first.tabIndex = 0;
    if (held) (first ?? at("back")).focus();
  };
  const move = (event) => {
    const tiles = [...event.currentTarget.querySelectorAll("button")], here = tiles.indexOf(document.activeElement);
    const next = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: tiles.length - 1 }[event.key];
    if (here < 0 || !tiles[next]) return;
    event.preventDefault();
    tiles[here].tabIndex = -1;
    tiles[next].tabIndex = 0;
    tiles[next].focus();
  };

  // ------------------------------------------------------------------ the table

  const COLUMNS = [
    ["name", "Name", (item) => item.name],
    ["before", "Before", (item) => number(item.before)],
    ["bytes", "Bytes", (item) => number(item.bytes)],
    ["change", "Change", (item) => signed(item.change)],
    ["share", "Share", (item, whole) => share(item.bytes, whole)],
    ["time", "ms a step, host", (item) => (item.time === undefined ? "–" : item.time.toFixed(3))],
    ["memory", "RAM at peak", (item) => number(item.memory ?? 0)],
    ["nodes", "Nodes", (item) => number(item.nodes ?? 0)],
  ];
  const table = (list, whole) => {
    const rows = list.some(({ row }) => row), timed = list.some(({ time }) => typeof time === "number");
    const compared = state.other !== null;
    const special = { before: compared, change: compared, time: rows && timed, memory: rows, nodes: rows };
    const columns = COLUMNS.filter(([key]) => special[key] ?? true);
    const by = columns.some(([key]) => key === state.sort) ? state.sort : "bytes";
    const value = (item) => (by === "share" ? item.bytes : item[by] ?? -1);
    const compare = (a, b) => (by === "name" ? a.name.localeCompare(b.name) : by === "change" ? Math.abs(a.change) - Math.abs(b.change) : value(a) - value(b));
    const sorted = [...list].sort((a, b) => (state.falling ? -1 : 1) * compare(a, b) || a.name.localeCompare(b.name));
    const heads = columns.map(([key, title]) => {
      const button = make("button", { type: "button", textContent: title });
      button.onclick = () => {
        state.falling = by === key ? !state.falling : key !== "name";
        state.sort = key;
        show();
        at("explorer-table").querySelector(`th[data-key="${key}"] button`)?.focus();
      };
      const head = make("th", { scope: "col", className: key === "name" ? "" : "n" }, button);
      head.dataset.key = key;
      head.setAttribute("aria-sort", key !== by ? "none" : state.falling ? "descending" : "ascending");
      return head;
    });
    const lines = sorted.map((item) => {
      const name = item.row ? make("button", { type: "button", className: "link", onclick: () => enter(item) }, item.name) : item.name;
      const [, ...others] = columns;
      const cells = others.map(([, , text]) => make("td", { className: "n" }, text(item, whole)));
      return make("tr", { className: "row" }, make("th", { scope: "row" }, make("i", { className: `dot k-${item.kind}` }), name), ...cells);
    });
    at("explorer-table").replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
  };

  // ------------------------------------------------------------------ the page

  const crumbs = () => {
    const steps = path();
    const link = (title, to, last) => {
      const button = make("button", { type: "button", className: "link", textContent: title, disabled: last, onclick: () => go(to) });
      if (last) button.setAttribute("aria-current", "location");
      return make("li", {}, button);
    };
    const titles = steps.map(([kind, name]) => (kind === "node" ? `node ${name}` : name.slice(name.indexOf("/") + 1)));
    at("crumbs").replaceChildren(
      link("Everything", [], !steps.length), ...titles.map((title, i) => link(title, steps.slice(0, i + 1), i + 1 === steps.length)));
    at("back").disabled = !steps.length;
  };
  const nodes = (target) => {
    const [kind, name] = path()[path().length - 1] ?? [];
    const found = kind === "row" ? target.rows.find((row) => keyOf(row) === name)?.nodes ?? [] : [];
    const query = state.query.trim().toLowerCase();
    const shown = found.filter((node) => node.toLowerCase().includes(query) || !query).slice(0, 300);
    at("nodes").hidden = !found.length;
    at("nodes").querySelector("h4").textContent = `Nodes (${number(found.length)})`;
    const button = (node) => make("button", { type: "button", className: "link", textContent: node, onclick: () => go([...path(), ["node", node]]) });
    at("nodes").querySelector("ul").replaceChildren(...shown.map((node) => make("li", {}, button(node))));
  };
  function show() {
    const list = items(own), target = targetOf(own);
    if (state.other) {
      const before = items(state.other), now = new Set(list.map(({ key }) => key));
      const sizes = new Map(before.map(({ key, bytes }) => [key, bytes]));
      list.push(...before.filter(({ key }) => !now.has(key)).map((item) => ({ ...item, bytes: 0, memory: 0, nodes: 0, time: undefined, row: undefined })));
      for (const item of list) (item.before = sizes.get(item.key) ?? 0), (item.change = item.bytes - item.before);
    }
    const matches = matching(list), sum = matches.reduce((total, { bytes }) => total + bytes, 0);
    crumbs();
    at("map-before").parentElement.hidden = !state.other;
    draw(at("map"), matches);
    if (state.other) draw(at("map-before"), matching(items(state.other)).map((item) => ({ ...item, row: undefined })));
    table(matches, sum);
    nodes(target);
    let words = `${number(matches.length)} of ${number(list.length)} shown, ${number(sum)} bytes`;
    if (state.other) {
      const before = matches.reduce((total, item) => total + item.before, 0);
      words += `; ${number(before)} before, ${signed(sum - before)}`;
    }
    at("explorer-status").textContent = `${words}.`;
    // Tables that are wider than the page are scrolled by keys too.
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth, name = box.firstElementChild.ariaLabel ?? "Explore every byte";
      for (const [key, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", `${name}, scrolls`]])
        wide ? box.setAttribute(key, value) : box.removeAttribute(key);
    }
  }
  const read = async (file) => {
    try {
      const found = JSON.parse(await file.text());
      if (found.schema !== own.schema || !found.targets?.length) throw new Error("it is no report of this version");
      state.other = found;
      [state.sort, state.falling] = ["change", true];
      at("clear").hidden = false;
      at("before-name").textContent = `Before: ${found.model.name}, ${number(targetOf(found).trimmed.file)} B`;
      at("now-name").textContent = `Now: ${own.model.name}, ${number(targetOf(own).trimmed.file)} B`;
      show();
    } catch (error) {
      at("explorer-status").textContent = `${file.name} cannot be compared: ${error.message}. Give a report.json.`;
    }
  };
  const clear = () => {
    [state.other, state.sort, state.falling] = [null, "bytes", true];
    at("compare").value = at("before-name").textContent = at("now-name").textContent = "";
    at("clear").hidden = true;
    show();
  };
  const back = () => path().length && go(path().slice(0, -1));

  at("explorer").hidden = false;
  own.targets.forEach(({ target }, i) => at("target").append(make("option", { value: i, textContent: target })));
  at("target").parentElement.hidden = own.targets.length < 2;
  at("target").onchange = (event) => ((state.target = Number(event.target.value)), show());
  at("search").oninput = (event) => ((state.query = event.target.value), show());
  at("compare").onchange = (event) => event.target.files[0] && read(event.target.files[0]);
  at("clear").onclick = clear;
  at("back").onclick = back;
  at("map").onkeydown = at("map-before").onkeydown = move;
  at("theme").onchange = (event) => (document.documentElement.dataset.theme = event.target.value);
  at("explorer").addEventListener("keydown", (event) => event.key === "Escape" && event.target !== at("search") && back());
  addEventListener("hashchange", show);
  addEventListener("resize", () => show());
  show();
})();
