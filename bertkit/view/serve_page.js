"use strict";
// The page of `bertkit serve`: a form that fits the model, what it says, and how to ask the same from elsewhere.
// Texts go in as textContent alone. Places in a text are counted in code points, as Python does; strings here are UTF-16.
(() => {
  const $ = (id) => document.getElementById(id);
  const { models, has_search } = JSON.parse($("served").textContent);
  const FEW = 10, HUES = 6, SURE = 0.5, ORDERS = ["both", "search", "bert"], ORDER_NAMES = { both: "both", search: "search engine", bert: "BERT" };
  const KINDS = {
    sequence: "Labels", tagging: "Entities", spans: "Answer", choice: "Choose an ending", fill_mask: "Fill in words", next_sentence: "Next sentence",
  };
  const state = { model: models[0] || null, tool: null, wanted: null, typed: {}, fields: [], waiting: null };

  function make(tag, properties = {}, ...children) {
    const { data, role, label, style, ...rest } = properties, node = Object.assign(document.createElement(tag), rest);
    if (role) node.setAttribute("role", role);
    if (label) node.setAttribute("aria-label", label);
    Object.entries(style || {}).forEach(([name, value]) => node.style.setProperty(name, value));
    node.append(...children);
    return node;
  }
  const own = (text, more = {}) => make("bdi", { ...more, textContent: text }); // somebody's text, whatever its direction
  const said = (value) => typeof value === "number" ? (Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(3)) : "–";

  // Bars: a table, so that it is read out as names and numbers. `rows`: {name, value, mark, click, pressed}.
  function bars(rows, title, most = 1) {
    const line = ({ name, value, mark, click, pressed }) => {
      const head = make("th", { scope: "row", className: mark ? "best" : "" });
      if (click) {
        const button = make("button", { type: "button", className: "plain", onclick: () => click(button) }, own(name));
        button.setAttribute("aria-pressed", Boolean(pressed));
        head.append(button);
      } else head.append(own(name));
      const bar = make("span", { className: "bar", style: { "--a": Math.max(0, Math.min(1, (value || 0) / (most || 1))) } });
      return make("tr", {}, head, make("td", { className: "track" }, bar), make("td", { className: "number", textContent: said(value) }));
    };
    const table = (part) => make("table", { className: "bars", label: title }, make("tbody", {}, ...part.map(line)));
    if (rows.length <= FEW + 2) return [table(rows)];
    return [table(rows.slice(0, FEW)), make("details", {}, make("summary", { textContent: `${rows.length - FEW} more` }), table(rows.slice(FEW)))];
  }
  const byValue = (probabilities) => Object.entries(probabilities).sort((a, b) => b[1] - a[1]);

  // A text with parts of it marked: `parts` are {start, end, node}, in code points; what overlaps an earlier one is left out.
  function running(text, parts, title = "text") {
    const points = Array.from(text), box = make("div", { className: "running", dir: "auto", tabIndex: 0, role: "region", label: title });
    let at = 0;
    for (const { start, end, node } of [...parts].sort((a, b) => a.start - b.start)) {
      if (start < at) continue;
      if (at < start) box.append(points.slice(at, start).join(""));
      box.append(node(points.slice(start, end).join("")));
      at = end;
    }
    box.append(points.slice(at).join(""));
    return box;
  }
  function toMark(box) { // an answer deep in a long text is scrolled to, inside of its box alone
    const mark = box.querySelector("mark");
    if (mark) box.scrollTop = mark.offsetTop - box.clientHeight / 2;
  }
  const marked = (text) => make("mark", { textContent: text });

  // What each kind of model says: {summary, nodes}.
  const SHOWN = {
    sequence(found) {
      if (typeof found.label === "number") return { summary: said(found.label), nodes: [make("p", { className: "large", textContent: said(found.label) })] };
      const held = Array.isArray(found.label) ? found.label : [found.label];
      const rows = byValue(found.probabilities).map(([name, value]) => ({ name, value, mark: held.includes(name) }));
      const verdict = held.length ? held.join(", ") : "none of the labels";
      return { summary: verdict, nodes: [make("p", { className: "large" }, own(verdict)), ...bars(rows, "probabilities")] };
    },
    next_sentence(found) {
      const shares = found.probabilities || found.next_sentence || found;
      const rows = byValue(shares).filter(([, value]) => typeof value === "number").map(([name, value], at) => ({ name, value, mark: !at }));
      return { summary: rows[0].name, nodes: [make("p", { className: "large" }, "the second text ", own(rows[0].name)), ...bars(rows, "probabilities")] };
    },
    tagging(found, model) {
      const types = typesOf([...(model.labels || []), ...found.entities.map((each) => each.label)]);
      const hue = (type) => ({ "--hue": `var(--c${types.indexOf(type) % HUES})` });
      const parts = found.entities.map(({ start, end, label }) => ({
        start, end, node: (text) => make("mark", { className: "entity", style: hue(label) }, text, make("small", {}, own(label))),
      }));
      const rows = found.entities.map(({ text, label, score }) => ({ name: `${text} · ${label}`, value: score }));
      const count = found.entities.length, summary = count ? `${count} ${count === 1 ? "entity" : "entities"}` : "no entities";
      return { summary, nodes: [running(found.text, parts), make("p", { className: "soft", textContent: summary }), ...bars(rows, "entities and their probabilities")] };
    },
    spans(found, model, [, context]) {
      if (!found.text) {
        const rows = [{ name: "no answer", value: found.no_answer_probability }];
        return { summary: "no answer in this text", nodes: [make("p", { className: "large", textContent: "no answer in this text" }), ...bars(rows, "probability"), running(context, [])] };
      }
      const place = make("div");
      const show = ({ start, end }) => { place.replaceChildren(running(context, [{ start, end, node: marked }], "passage")); toMark(place.firstChild); };
      const others = (found.alternatives || []).filter((each) => each.text);
      const all = others.length ? others : [found];
      const rows = all.map((each) => ({
        name: each.text, value: each.probability, mark: each.text === found.text, pressed: each.text === found.text,
        click: (button) => {
          for (const one of button.closest("table").querySelectorAll("button")) one.setAttribute("aria-pressed", one === button);
          show(each);
        },
      }));
      rows.push({ name: "no answer", value: found.no_answer_probability });
      queueMicrotask(() => show(found));
      return { summary: found.text, nodes: [make("p", { className: "large" }, own(found.text)), place, ...bars(rows, "answers and their probabilities")] };
    },
    choice(found, model, values) {
      const given = columnsOf(model).flatMap(([, isList], at) => isList ? linesOf(values[at]) : [values[at]]);
      const endings = given.slice(-found.probabilities.length), order = found.probabilities.map((value, at) => ({ name: endings[at], value, mark: at === found.label }));
      return { summary: endings[found.label], nodes: [make("p", { className: "large" }, own(endings[found.label])), ...bars(order.sort((a, b) => b.value - a.value), "endings")] };
    },
    fill_mask(found, model) {
      const sign = model.mask || "[MASK]", pieces = found.text.split(sign), chips = found.masks.map((of) => marked(of[0].token));
      const choose = (at, token) => { chips[at].textContent = token; };
      const text = make("div", { className: "running", dir: "auto" });
      if (pieces.length === chips.length + 1) pieces.forEach((piece, at) => text.append(piece, ...(chips[at] ? [chips[at]] : [])));
      else text.append(found.text);
      const tables = found.masks.map((of, at) => {
        const rows = of.map(({ token, probability }, rank) => ({
          name: token, value: probability, mark: !rank, pressed: !rank,
          click: (button) => {
            for (const one of button.closest("table").querySelectorAll("button")) one.setAttribute("aria-pressed", one === button);
            choose(at, token);
          },
        }));
        return make("div", {}, make("h3", { textContent: chips.length > 1 ? `${at + 1}. ${sign}` : sign }), ...bars(rows, `words for mask ${at + 1}`));
      });
      const summary = chips.length ? found.masks.map((of) => of[0].token).join(", ") : `nothing to fill in: write ${sign} where a word is missing`;
      return { summary, nodes: chips.length ? [text, make("div", { className: "masks" }, ...tables)] : [make("p", { textContent: summary })] };
    },
  };
  const typesOf = (tags) => [...new Set(tags.map((tag) => tag.replace(/^[BIESLU]-/, "")))].filter((type) => type !== "O"); // of IOB and its kin
  const linesOf = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);
  // The columns of a choice, and whether one holds all endings: as its example has them.
  const columnsOf = (model) => Object.entries(model.examples[0]).map(([column, value]) => [column, Array.isArray(value)]);

  // Search: passages with the answer marked, and what each was put in its place for.
  function showPassages(reply) {
    const hits = reply.answers, most = {};
    const names = { score: ORDER_NAMES[reply.order] === "both" ? "both" : "score", score_search: "search", score_bert: "BERT" };
    for (const name of Object.keys(names)) most[name] = Math.max(...hits.map((hit) => hit[name] || 0), 0);
    const items = hits.map((hit) => {
      const name = String(hit.source ?? ""), isLink = /^https?:\/\//i.test(name); // no other kind of address becomes a link
      const source = isLink ? make("a", { href: name, rel: "noreferrer noopener", target: "_blank" }, own(name)) : own(name);
      const head = make("h3", {}, own(String(hit.title || name || "passage")));
      const from = make("p", { className: "soft source" }, source, ...((hit.place ?? "") !== "" ? [" · ", own(String(hit.place))] : []));
      const parts = hit.answer ? [{ start: hit.start, end: hit.end, node: marked }] : [];
      const shown = Object.keys(names).filter((name) => typeof hit[name] === "number" && !(name === "score" && reply.order !== "both"));
      const scores = shown.map((name) => make("span", { className: "score" }, `${names[name]} `, make("b", { textContent: said(hit[name]) }),
        make("span", { className: "bar", style: { "--a": most[name] > 0 ? Math.max(0, hit[name]) / most[name] : 0 } })));
      return make("li", {}, head, running(hit.passage, parts, "passage"), make("p", { className: "scores soft" }, ...scores), from);
    });
    const count = hits.length, best = hits.find((hit) => hit.answer);
    const summary = count ? `${count} ${count === 1 ? "passage" : "passages"}${best ? `; the first answer: ${best.answer}` : ""}` : "no passage has words of the question";
    queueMicrotask(() => document.querySelectorAll(".hits .running").forEach(toMark));
    return { summary, nodes: count ? [make("ol", { className: "hits" }, ...items)] : [make("p", { textContent: summary })] };
  }

  // Two texts as vectors: the cosine of the angle between them.
  function showCosine(reply) {
    const [a, b] = reply.vectors, dot = (x, y) => x.reduce((sum, value, at) => sum + value * y[at], 0);
    const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    return { summary: `similarity ${said(cosine)}`, nodes: [make("p", { className: "large", textContent: said(cosine) }),
      ...bars([{ name: "cosine", value: cosine }], "similarity"), make("p", { className: "soft", textContent: `of two vectors of ${a.length} numbers; 1 is the same direction.` })] };
  }

  // What can be done with a model: its fields, what is sent, and what is shown of the reply.
  const field = (label, more = {}) => ({ label, rows: 3, ...more });
  function fieldsOf(model) {
    const columns = model.columns || [], named = (label, at) => columns[at] && !/^(text|text_pair|question|context|words|endings)$/.test(columns[at]) ? `${label} (${columns[at]})` : label;
    switch (model.kind) {
      case "spans": return [field("Question", { rows: 1 }), field("Passage", { rows: 7 })];
      case "choice": return columnsOf(model).map(([column, isList]) => field(isList ? `${column}, one a line` : column, { rows: isList ? 3 : 2, isList }));
      case "next_sentence": return [field("First text"), field("Second text")];
      case "sequence": {
        const first = field(named(model.needs_pair || columns.length > 1 ? "First text" : "Text", 0), { rows: 4 });
        if (model.needs_pair) return [first, field(named("Second text", 1))];
        return columns.length > 1 ? [first, field(`${named("Second text", 1)}, if there is one`, { optional: true, rows: 2 })] : [first];
      }
      default: return [field("Text", { rows: 5 })];
    }
  }
  function inputOf(model, values) {
    if (model.kind === "choice") return Object.fromEntries(columnsOf(model).map(([column, isList], at) => [column, isList ? linesOf(values[at]) : values[at]]));
    return values.length === 1 || values[1] === "" ? values[0] : values;
  }
  const withModel = (body) => models.length > 1 ? { ...body, model: state.model.name } : body;
  function toolsOf(model) {
    const found = [];
    if (has_search) found.push({ key: "search", name: "Search", verb: "Search", fields: [field("Question", { rows: 1 })], path: "search",
      body: ([question]) => ({ question, order: chosen("order"), top_k: Number($("top").value) }), show: showPassages });
    if (model && model.kind in SHOWN) found.push({ key: "predict", kind: model.kind, name: KINDS[model.kind], verb: model.kind === "choice" ? "Choose" : model.kind === "fill_mask" ? "Fill in" : "Predict",
      fields: fieldsOf(model), path: "predict", body: (values) => withModel({ inputs: [inputOf(model, values)] }),
      show: (reply, values) => SHOWN[model.kind](reply.predictions[0], model, values), view: (values) => inputOf(model, values), examples: model.examples || [] });
    if (model) found.push({ key: "similarity", name: "Similarity", verb: "Compare", fields: [field("First text"), field("Second text")], path: "embed",
      body: (values) => withModel({ inputs: values }), show: showCosine, view: model.kind === "embedding" ? (values) => values[0] : null,
      examples: model.kind === "embedding" ? model.examples || [] : [] });
    return found;
  }

  // Asking, and what can go wrong with it.
  const at = (path) => new URL(path, location.href.split("#")[0]).href;
  async function post(path, body, signal) {
    let reply, text;
    try {
      reply = await fetch(at(path), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
      text = await reply.text();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Error("No answer: the server has stopped, or cannot be reached. Try again when it is there.");
    }
    if (reply.ok) return text;
    let message = `The server answered with status ${reply.status}.`;
    try { message = JSON.parse(text).error.message; } catch { /* not of this server, such as a proxy's page */ }
    const seconds = Number(reply.headers.get("Retry-After"));
    if ((reply.status === 429 || reply.status === 503) && !/try again/.test(message)) message += ` Try again ${seconds > 0 ? `in ${seconds} s` : "in a moment"}.`;
    throw Error(message);
  }
  async function during(text, work) {
    if (state.waiting) state.waiting.abort();
    const mine = state.waiting = new AbortController(), started = performance.now();
    $("failed").textContent = "";
    $("status").textContent = text;
    $("found").setAttribute("aria-busy", "true");
    try {
      const summary = await work(mine.signal);
      $("status").replaceChildren(make("span", { className: "unseen" }, own(summary), ". "), `${Math.round(performance.now() - started)} ms`);
    } catch (error) {
      if (error.name === "AbortError") return;
      $("status").textContent = "";
      $("failed").textContent = error.message;
    } finally {
      if (state.waiting === mine) { state.waiting = null; $("found").removeAttribute("aria-busy"); }
    }
  }
  function values() { // of the fields; null, with the focus there, where one is empty that must not be
    const typed = state.fields.map((each) => each.value), empty = state.tool.fields.findIndex((each, at) => !each.optional && !typed[at].trim());
    if (empty < 0) return typed;
    $("failed").textContent = `${state.tool.fields[empty].label}: type something first.`;
    state.fields[empty].focus();
    return null;
  }
  function submit() {
    const typed = values(), tool = state.tool;
    if (!typed) return;
    during("asking …", async (signal) => {
      const text = await post(tool.path, tool.body(typed), signal), reply = JSON.parse(text), { summary, nodes } = tool.show(reply, typed);
      $("found").replaceChildren(...nodes);
      $("attention").replaceChildren();
      $("reply").textContent = JSON.stringify(reply, null, 1);
      $("raw").hidden = false;
      return cut(summary);
    });
  }
  const cut = (text) => { const points = Array.from(String(text)); return points.length > 120 ? `${points.slice(0, 120).join("")} …` : points.join(""); };
  function look() {
    const typed = values();
    if (!typed) return;
    during("looking; this takes longer than an answer …", async (signal) => {
      const page = await post("view", withModel({ input: state.tool.view(typed) }), signal);
      // the server's own page, by itself: it can run its script, and reach neither this page nor the server
      const frame = make("iframe", { srcdoc: page, title: "attention of this input" });
      frame.setAttribute("sandbox", "allow-scripts");
      const save = make("a", { href: URL.createObjectURL(new Blob([page], { type: "text/html" })), download: "attention.html", textContent: "save this page" });
      const close = make("button", { type: "button", textContent: "Close", onclick: () => { $("attention").replaceChildren(); $("look").focus(); } });
      $("attention").replaceChildren(make("h2", { textContent: "Attention" }), save, close, frame);
      frame.scrollIntoView({ block: "start" });
      return "attention is shown below";
    });
  }

  // The same from a program: what is invisible is written as an escape, so that a line reads as it runs.
  const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
  const asJson = (body) => JSON.stringify(body).replace(hidden, (sign) => [...Array(sign.length).keys()].map((unit) => `\\u${sign.charCodeAt(unit).toString(16).padStart(4, "0")}`).join(""));
  const asPython = (body) => JSON.stringify(body).replace(hidden, (sign) => `\\U${sign.codePointAt(0).toString(16).padStart(8, "0")}`);
  function drawCode() {
    const tool = state.tool, body = tool.body(state.fields.map((each) => each.value)), url = at(tool.path);
    $("curl").textContent = `curl ${url} -H 'Content-Type: application/json' \\\n  -d '${asJson(body).replace(/'/g, "'\\''")}'`;
    $("python").textContent = `import json\nfrom urllib.request import Request, urlopen\n\nbody = ${asPython(body)}\n`
      + `request = Request("${url}", json.dumps(body).encode(), {"Content-Type": "application/json"})\nprint(json.load(urlopen(request)))`;
  }
  async function copy(button) {
    const code = $(button.dataset.of);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // not allowed, as on a page without https from another machine: selected, for the keys to copy
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  // The form.
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  function options(box, name, entries, picked, onchange) {
    box.replaceChildren(box.querySelector("legend"), ...entries.map(([value, text]) =>
      make("label", {}, make("input", { type: "radio", name, value, checked: value === picked, onchange }), make("span", { textContent: text }))));
  }
  function fill(example) {
    const given = typeof example === "string" ? [example] : Object.values(example);
    state.fields.forEach((each, at) => { each.value = Array.isArray(given[at]) ? given[at].join("\n") : given[at] ?? ""; keep(each, at); });
    drawCode();
    submit();
  }
  const placeOf = (tool, at) => `${tool.kind || tool.key} ${at}`; // of what is typed, which waits there for when the tool is used again
  const keep = (each, at) => { state.typed[placeOf(state.tool, at)] = each.value; };
  function draw() {
    const tools = toolsOf(state.model), tool = state.tool = tools.find((each) => each.key === state.wanted) || tools[0];
    options($("tools"), "tool", tools.map((each) => [each.key, each.name]), tool.key, (event) => {
      state.wanted = event.target.value;
      draw();
      document.querySelector("#tools input:checked").focus();
    });
    $("tools").hidden = tools.length < 2;
    const typed = (number) => state.typed[placeOf(tool, number)] || "";
    state.fields = tool.fields.map(({ rows }, number) => make(rows > 1 ? "textarea" : "input", {
      id: `field-${number}`, value: typed(number), dir: "auto", style: { "--rows": rows }, autocomplete: "off", spellcheck: false, ...(rows > 1 ? { rows } : { type: "text" }),
      oninput: (event) => { keep(event.target, number); drawCode(); },
    }));
    $("fields").replaceChildren(...tool.fields.map(({ label }, number) => make("div", {}, make("label", { htmlFor: `field-${number}`, textContent: label }), state.fields[number])));
    $("orders").hidden = $("tops").hidden = tool.key !== "search";
    const examples = (tool.examples || []).map((example) => {
      const text = typeof example === "string" ? example : Object.values(example).flat().join(" · ");
      return make("button", { type: "button", className: "chip", onclick: () => fill(example) }, own(cut(text)));
    });
    $("examples").replaceChildren(...(examples.length ? ["Try: ", ...examples] : []));
    $("mask").hidden = tool.kind !== "fill_mask";
    $("go").textContent = tool.verb;
    $("look").hidden = !tool.view;
    const { name, kind, labels = [] } = state.model || {}, types = kind === "tagging" ? typesOf(labels) : labels;
    const about = [models.length === 1 && tool.key !== "search" ? `Model ${name}` : "", tool.kind === kind && types.length ? `${types.length} labels: ${cut(types.join(", "))}` : ""];
    $("about").replaceChildren(own(about.filter(Boolean).join(". ")));
    if (state.waiting) state.waiting.abort();
    for (const id of ["status", "failed"]) $(id).textContent = "";
    for (const id of ["found", "attention"]) $(id).replaceChildren();
    $("raw").hidden = true;
    drawCode();
  }
  $("models").append(...models.map(({ name }, value) => make("option", { value, textContent: name })));
  $("choose").hidden = models.length < 2;
  $("models").onchange = (event) => { state.model = models[Number(event.target.value)]; draw(); };
  options($("orders"), "order", ORDERS.map((each) => [each, ORDER_NAMES[each]]), "both", () => { drawCode(); if (state.fields[0].value.trim()) submit(); });
  $("top").onchange = () => drawCode();
  $("ask").onsubmit = (event) => { event.preventDefault(); submit(); };
  $("ask").onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) { event.preventDefault(); submit(); } };
  $("look").onclick = look;
  $("mask").onclick = () => {
    const [text] = state.fields, sign = state.model.mask || "[MASK]";
    text.setRangeText(sign, text.selectionStart, text.selectionEnd, "end");
    text.dispatchEvent(new Event("input"));
    text.focus();
  };
  document.querySelectorAll("button[data-of]").forEach((button) => { button.onclick = () => copy(button); });
  if (!models.length && !has_search) throw Error("the server has no model");
  draw();
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
