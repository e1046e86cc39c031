"use strict";
// The page of `bertkit serve`: a form for the model's inputs, the reply, and code that sends the same request.
// Texts are set as textContent only, never as HTML. Positions in a text count code points, as in Python; JavaScript strings are UTF-16.
(() => {
  const $ = (id) => document.getElementById(id);
  const { models, orders, has_token } = JSON.parse($("served").textContent);
  const FEW = 10, HUES = 6, ALTERNATIVES = 5, LONGEST = 120, LONGEST_SENTENCE = 500, MASK = "[MASK]";
  const ORDERS = { search: ["search engine", "the search engine ranks passages by their words (BM25)"], vectors: ["vectors", "vectors by their meaning"],
    hybrid: ["hybrid", "hybrid adds the two"], bert: ["BERT", "BERT by the odds that they answer the question"], both: ["both", "both multiplies words and odds"] };
  const state = { model: models[0] || null, tool: null, wanted: null, typed: {}, fields: [], waiting: null };

  function make(tag, properties = {}, ...children) {
    const { role, label, style, ...rest } = properties, node = Object.assign(document.createElement(tag), rest);
    if (role) node.setAttribute("role", role);
    if (label) node.setAttribute("aria-label", label);
    Object.entries(style || {}).forEach(([name, value]) => node.style.setProperty(name, value));
    node.append(...children);
    return node;
  }
  const own = (text) => make("bdi", { textContent: text }); // a text of unknown direction
  const large = (...children) => make("p", { className: "large" }, ...children);
  const soft = (text) => make("p", { className: "soft", textContent: text });
  const marked = (text) => make("mark", { textContent: text });
  const counted = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  const byValue = (probabilities) => Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const linesOf = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);
  const typesOf = (tags) => [...new Set(tags.map((tag) => tag.replace(/^[BIESLU]-/, "")))].filter((type) => type !== "O");
  function cut(text) {
    const points = Array.from(String(text));
    return points.length > LONGEST ? `${points.slice(0, LONGEST).join("")} …` : String(text);
  }
  function format(value) {
    if (typeof value !== "number") return "–";
    const size = Math.abs(value);
    return size >= 100 ? value.toFixed(1) : value !== 0 && size < 0.001 ? value.toPrecision(2) : value.toFixed(3);
  }

  // Bars are tables, so that a screen reader reads names and numbers. A row is {name, value, mark, pick}; with `pick` it is a button.
  const bar = (share) => make("span", { className: "bar", style: { "--a": Math.max(0, Math.min(1, share || 0)) } });
  function bars(rows, title) {
    const line = ({ name, value, mark, pick }) => {
      const head = make("th", { scope: "row", className: mark ? "best" : "" }, pick ? button(name, mark, pick) : own(name));
      const number = make("td", { className: "number", textContent: format(value) });
      return make("tr", {}, head, make("td", {}, bar(value)), number);
    };
    const table = (some) => make("table", { className: "bars", label: title }, make("tbody", {}, ...some.map(line)));
    if (rows.length <= FEW + 2) return [table(rows)];
    const more = make("details", {}, make("summary", { textContent: `${rows.length - FEW} more` }), table(rows.slice(FEW)));
    return [table(rows.slice(0, FEW)), more];
  }
  function button(name, isPressed, pick) { // exactly one button of a table is pressed
    const node = make("button", { type: "button", className: "plain" }, own(name));
    node.setAttribute("aria-pressed", Boolean(isPressed));
    node.onclick = () => {
      for (const each of node.closest("table").querySelectorAll("button")) each.setAttribute("aria-pressed", each === node);
      pick();
    };
    return node;
  }

  // Fill an element with a text: `parts` are {start, end, node}; a part that overlaps an earlier one is ignored.
  function filled(box, text, parts) {
    const points = Array.from(text);
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
  const running = (text, parts) =>
    filled(make("div", { className: "running", dir: "auto", tabIndex: 0, role: "region", label: "text" }), text, parts);
  function toMark(box) { // scrolls the box, not the page, to the marked answer
    const mark = box.querySelector("mark");
    if (mark) box.scrollTop = mark.offsetTop - box.clientHeight / 2;
  }

  // How a prediction of each kind of model is shown: {summary, nodes}. `values` are the contents of the fields.
  const SHOWN = {
    sequence(found) {
      if (!found.probabilities) return { summary: format(found.label), nodes: [large(format(found.label))] };
      const held = [found.label].flat().map(String), verdict = held.join(", ") || "none of the labels";
      const rows = byValue(found.probabilities).map(([name, value]) => ({ name, value, mark: held.includes(name) }));
      return { summary: verdict, nodes: [large(own(verdict)), ...bars(rows, "probabilities")] };
    },
    next_sentence(found) {
      const rows = byValue(found.probabilities).map(([name, value], rank) => ({ name, value, mark: !rank }));
      const summary = `the second text ${found.label}`;
      return { summary, nodes: [large(summary), ...bars(rows, "probabilities")] };
    },
    tagging(found, model) {
      const types = typesOf([...model.labels, ...found.entities.map((each) => each.label)]);
      const hue = (type) => ({ "--hue": `var(--c${types.indexOf(type) % HUES})` });
      const parts = found.entities.map(({ start, end, label }) => ({
        start, end, node: (text) => make("mark", { className: "entity", style: hue(label) }, text, make("small", {}, own(label))),
      }));
      const rows = found.entities.map(({ text, label, score }) => ({ name: `${text} · ${label}`, value: score }));
      const summary = rows.length ? counted(rows.length, "entity", "entities") : "no entities";
      return { summary, nodes: [running(found.text, parts), soft(summary), ...bars(rows, "entities and their probabilities")] };
    },
    spans(found, model, [, context]) {
      const place = make("div"), none = { name: "no answer", value: found.no_answer_probability, mark: !found.text };
      const show = (part) => {
        place.replaceChildren(running(context, part.text ? [{ ...part, node: marked }] : []));
        toMark(place.firstChild);
      };
      const rows = (found.alternatives || []).map((each) => ({
        name: each.text, value: each.probability, mark: each.text === found.text, pick: () => show(each),
      }));
      const summary = found.text || "no answer in this text";
      queueMicrotask(() => show(found)); // runs when the text is on the page and has a size
      return { summary, nodes: [large(own(summary)), place, ...bars([...rows, none], "answers and their probabilities")] };
    },
    choice(found, model, values) {
      const given = columnsOf(model).flatMap(([, isList], at) => isList ? linesOf(values[at]) : [values[at]]);
      const endings = given.slice(-found.probabilities.length), summary = endings[found.label];
      const rows = found.probabilities.map((value, at) => ({ name: endings[at], value, mark: at === found.label }));
      return { summary, nodes: [large(own(summary)), ...bars(rows.sort((a, b) => b.value - a.value), "endings")] };
    },
    generation(found) {
      const others = (found.candidates || []).slice(1).map(({ text, score }) => make("li", { dir: "auto" }, own(text), ` ${format(score)}`));
      const summary = found.text || "an empty text", about = soft(`score ${format(found.score)}`);
      const more = others.length ? [make("h2", { textContent: "Others" }), make("ol", { start: 2, className: "others" }, ...others)] : [];
      return { summary, nodes: [make("p", { className: "large", dir: "auto" }, own(summary)), about, ...more] };
    },
    fill_mask(found) {
      if (!found.masks.length) {
        const summary = `nothing to fill in: write ${MASK} where a word is missing`;
        return { summary, nodes: [make("p", { textContent: summary })] };
      }
      const pieces = found.text.split(MASK), chips = found.masks.map(([best]) => marked(best.token));
      const isWhole = pieces.length === chips.length + 1;
      const text = make("div", { className: "running", dir: "auto" });
      text.append(...(isWhole ? pieces.flatMap((piece, at) => chips[at] ? [piece, chips[at]] : [piece]) : [found.text]));
      const tables = found.masks.map((words, at) => {
        const rows = words.map(({ token, probability }, rank) => ({
          name: token, value: probability, mark: !rank, pick: () => { chips[at].textContent = token; },
        }));
        const title = make("h2", { textContent: chips.length > 1 ? `${at + 1}. ${MASK}` : MASK });
        return make("div", {}, title, ...bars(rows, `words for mask ${at + 1}`));
      });
      const summary = found.masks.map(([best]) => best.token).join(", ");
      return { summary, nodes: [text, make("div", { className: "masks" }, ...tables)] };
    },
  };

  // Search: the best answer in its sentence, then snippets. BERT's score is shown if it is the log odds that a
  // passage answers the question; all other scores only rank passages.
  function showPassages(reply) {
    const hits = reply.answers;
    const odds = ({ score_bert }) => reply.has_odds && typeof score_bert === "number" ? 1 / (1 + Math.exp(-score_bert)) : null;
    const isSure = (hit) => hit.answer && (!reply.has_odds || odds(hit) > 0.5);
    const share = (hit) => odds(hit) === null ? [] : [make("span", { className: "share" }, "answers the question: ",
      make("b", { textContent: `${Math.round(100 * odds(hit))} %` }), bar(odds(hit)))];
    const from = (hit) => [make("h2", {}, hit.title ? own(hit.title) : sourceOf(hit)),
      make("span", {}, hit.title ? sourceOf(hit) : "", " ", own(String(hit.place ?? ""))), ...share(hit)];
    const answerOf = (hit, first) => ({ start: hit.start - first, end: hit.end - first,
      node: (text) => make("mark", { textContent: text, className: isSure(hit) ? "" : "unsure", title: isSure(hit) ? "" : "probably not an answer" }) });
    const items = hits.map((hit) => {
      const words = hit.marks.map(([start, end]) => ({ start, end, node: (text) => make("b", { textContent: text }) }));
      const answer = hit.answer ? [answerOf(hit, hit.snippet_start)] : [];
      const isApart = ({ start, end }) => answer.every((each) => end <= each.start || each.end <= start);
      const snippet = filled(make("p", { className: "snippet", dir: "auto" }), hit.snippet, [...answer, ...words.filter(isApart)]);
      const whole = make("details", {}, make("summary", { textContent: "passage" }), filled(make("p", { className: "whole", dir: "auto" }),
        hit.passage, hit.answer ? [answerOf(hit, 0)] : []));
      return make("li", {}, make("div", { className: "soft source" }, ...from(hit), whole), snippet);
    });
    const best = hits.find(isSure), nodes = [];
    if (best) {
      const [first, last] = sentenceAround(best), text = Array.from(best.passage).slice(first, last).join("");
      nodes.push(make("div", { className: "top-answer" }, large(own(best.answer)),
        filled(make("p", { dir: "auto" }), text, [answerOf(best, first)]), make("div", { className: "soft source" }, ...from(best))));
    }
    if (best && !reply.has_odds) nodes.push(soft("BERT was trained without unanswerable questions: it ranks the passages, but gives no probability of an answer."));
    if (reply.is_cut) nodes.push(soft("The question is longer than a model reads: the model has read only its beginning."));
    const summary = `${counted(hits.length, "passage", "passages")}${best ? `; the first answer: ${best.answer}` : ""}`;
    return { summary, nodes: [...nodes, hits.length ? make("ol", { className: "hits" }, ...items) : soft("No passage has these words.")] };
  }
  function sentenceAround({ passage, start, end, snippet, snippet_start }) { // its first code point, and the one after it; of the snippet if it is too long
    let at = 0, first = 0, last = 0;
    for (const { segment } of new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(passage)) {
      if (at <= start) first = at;
      if (at < end) last = at + Array.from(segment).length;
      at += Array.from(segment).length;
    }
    return last - first <= LONGEST_SENTENCE ? [first, last] : [snippet_start, snippet_start + Array.from(snippet).length];
  }
  function sourceOf({ source }) { // only web addresses become links
    if (!/^https?:[/][/]/i.test(source ?? "")) return make("bdi", { textContent: (source ?? "").split("/").at(-1), title: source ?? "" });
    return make("a", { href: source, rel: "noreferrer noopener", target: "_blank" }, own(source));
  }

  // Two texts as vectors: the cosine of the angle between them.
  function showCosine(reply) {
    const [a, b] = reply, dot = (x, y) => x.reduce((sum, value, at) => sum + value * y[at], 0);
    const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    const about = soft(`The cosine of the angle between two vectors of ${a.length} numbers: 1 if they have the same direction.`);
    const nodes = [large(format(cosine)), ...bars([{ name: "cosine", value: cosine }], "similarity"), about];
    return { summary: `similarity ${format(cosine)}`, nodes };
  }

  // What each kind of model offers: the fields of the form, the request, and how the reply is shown.
  const KINDS = {
    sequence: ["Labels", "Predict"], tagging: ["Entities", "Find"], spans: ["Answer", "Answer"], choice: ["Choose an ending", "Choose"],
    generation: ["Write", "Write"], fill_mask: ["Fill in words", "Fill in"], next_sentence: ["Next sentence", "Predict"],
  };
  const field = (label, rows = 3, more = {}) => ({ label, rows, ...more });
  // The columns of a choice, and whether a column holds a list of endings; both from the first example.
  const columnsOf = (model) => Object.entries(model.examples[0]).map(([column, value]) => [column, Array.isArray(value)]);
  function fieldsOf({ kind, columns, needs_pair, ...model }) {
    const named = (label, at) => /^text/.test(columns[at]) ? label : `${label} (${columns[at]})`;
    if (kind === "spans") return [field("Question", 1), field("Passage", 7)];
    if (kind === "choice") return columnsOf(model).map(([name, isList]) => field(isList ? `${name}, one a line` : name));
    if (kind === "next_sentence") return [field("First text"), field("Second text")];
    if (kind !== "sequence" || columns.length < 2) return [field("Text", 5)];
    const second = named("Second text", 1);
    return [field(named("First text", 0)), needs_pair ? field(second) : field(`${second}, if there is one`, 2, { optional: true })];
  }
  function inputOf(model, values) {
    if (model.kind !== "choice") return values.length === 1 || values[1] === "" ? values[0] : values;
    return Object.fromEntries(columnsOf(model).map(([column, isList], at) => [column, isList ? linesOf(values[at]) : values[at]]));
  }
  const withModel = (body) => models.length > 1 ? { model: state.model.name, ...body } : body;
  function toolsOf(model) {
    const found = [];
    if (orders.length) found.push({
      key: "search", name: "Search", verb: "Search", fields: [field("Question", 1)], path: "search", show: showPassages,
      body: ([question]) => ({ question, order: document.querySelector("[name=order]:checked").value, top_k: Number($("top").value) }),
      about: orders.length > 1 ? `The order: ${orders.map((order) => ORDERS[order][1]).join("; ")}.` : "",
    });
    if (model && model.kind in SHOWN) {
      const [name, verb] = KINDS[model.kind], more = model.kind === "spans" ? { alternatives: ALTERNATIVES } : {};
      const types = model.kind === "tagging" ? typesOf(model.labels) : model.labels;
      found.push({
        key: "predict", kind: model.kind, name, verb, fields: fieldsOf(model), path: "predict", examples: model.examples,
        body: (values) => withModel({ inputs: [inputOf(model, values)], ...more }),
        show: (reply, values) => SHOWN[model.kind](reply.predictions[0], model, values),
        view: (values) => inputOf(model, values),
        about: types.length ? `${counted(types.length, "label", "labels")}: ${cut(types.join(", "))}.` : "",
      });
    }
    if (model) found.push({
      key: "similarity", name: "Similarity", verb: "Compare", fields: [field("First text"), field("Second text")], path: "embed",
      body: (values) => withModel({ inputs: values }), show: showCosine, view: model.kind === "embedding" ? ([first]) => first : null,
      examples: model.kind === "embedding" && model.examples.length > 1 ? [model.examples.slice(0, 2)] : [],
    });
    return found;
  }

  // Requests and their errors.
  const addressOf = (path) => new URL(path, location.href.split("#")[0]).href;
  async function post(path, body, signal) {
    let reply, text;
    try {
      const headers = { "Content-Type": "application/json" };
      reply = await fetch(addressOf(path), { method: "POST", headers, body: JSON.stringify(body), signal });
      text = await reply.text();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Error("No reply: the server has stopped, or cannot be reached. Try again later.");
    }
    if (reply.ok) return text;
    let message = `The server answered with status ${reply.status}.`;
    try { message = JSON.parse(text).error.message; } catch { /* not a reply of this server, but for example of a proxy */ }
    const isLater = reply.status === 429 || reply.status === 503;
    throw Error(isLater && !/try again/.test(message) ? `${message}. Try again in a moment.` : message);
  }
  async function during(text, work) { // a new request cancels a waiting one
    if (state.waiting) state.waiting.abort();
    const mine = state.waiting = new AbortController(), started = performance.now();
    $("failed").textContent = "";
    $("status").textContent = text;
    $("found").setAttribute("aria-busy", "true");
    try {
      const summary = make("span", { className: "unseen" }, own(cut(await work(mine.signal))), ". ");
      $("status").replaceChildren(summary, `${Math.round(performance.now() - started)} ms`);
    } catch (error) {
      if (error.name === "AbortError") return;
      $("status").textContent = "";
      $("failed").textContent = error.message;
    } finally {
      if (state.waiting === mine) { state.waiting = null; $("found").removeAttribute("aria-busy"); }
    }
  }
  const typed = () => state.fields.map((each) => each.value);
  function complete() { // returns the contents of the fields; null if a required field is empty, which then gets the focus
    const values = typed(), empty = state.tool.fields.findIndex((each, at) => !each.optional && !values[at].trim());
    if (empty < 0) return values;
    $("failed").textContent = `${state.tool.fields[empty].label}: type something first.`;
    state.fields[empty].focus();
    return null;
  }
  function submit() {
    const values = complete(), tool = state.tool;
    if (values) during("waiting for the reply …", async (signal) => {
      const reply = JSON.parse(await post(tool.path, tool.body(values), signal)), { summary, nodes } = tool.show(reply, values);
      const { truncated, at_limit } = reply.predictions?.[0] ?? {};
      const notes = [
        ...(truncated ? [soft("The model did not read the end of the text, which is too long for it.")] : []),
        ...(at_limit ? [soft("The text ends at the largest length, not where the model would end it.")] : []),
      ];
      $("found").replaceChildren(...nodes, ...notes);
      $("attention").replaceChildren();
      $("reply").textContent = JSON.stringify(reply, null, 1);
      $("raw").hidden = false;
      return summary;
    });
  }
  function look() {
    const values = complete(), { view } = state.tool;
    if (values) during("computing attention; this takes longer than a prediction …", async (signal) => {
      const page = await post("view", withModel({ input: view(values) }), signal);
      // in a sandbox, the page can run its script, but reaches neither this page nor the server
      const frame = make("iframe", { srcdoc: page, title: "attention of this input" });
      frame.setAttribute("sandbox", "allow-scripts");
      const file = URL.createObjectURL(new Blob([page], { type: "text/html" }));
      const close = make("button", { type: "button", textContent: "Close" });
      close.onclick = () => { $("attention").replaceChildren(); $("look").focus(); };
      $("attention").replaceChildren(make("h2", { textContent: "Attention" }),
        make("a", { href: file, download: "attention.html", textContent: "save this page" }), close, frame);
      frame.scrollIntoView({ block: "start" });
      return "attention is shown below";
    });
  }

  // Code that sends the same request. Invisible characters are escaped, so that one sees what the code sends.
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
  const units = (sign) => [...Array(sign.length).keys()].map((at) => `\\u${sign.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
  const asJson = (body) => JSON.stringify(body).replace(HIDDEN, units);
  const asPython = (body) => JSON.stringify(body).replace(HIDDEN, (sign) => `\\U${sign.codePointAt(0).toString(16).padStart(8, "0")}`);
  function drawCode() {
    const body = state.tool.body(typed()), url = addressOf(state.tool.path);
    const bearer = has_token ? ' -H "Authorization: Bearer $BERTKIT_TOKEN"' : "";
    $("curl").textContent = `curl ${url} -H 'Content-Type: application/json'${bearer} \\\n  -d '${asJson(body).replace(/'/g, "'\\''")}'`;
    const [imported, header] = has_token ? ["\nimport os", ', "Authorization": f"Bearer {os.environ[\'BERTKIT_TOKEN\']}"'] : ["", ""];
    $("python").textContent = `import json${imported}\nfrom urllib.request import Request, urlopen\n\nurl = "${url}"\nbody = ${asPython(body)}\n`
      + `headers = {"Content-Type": "application/json"${header}}\nprint(json.load(urlopen(Request(url, json.dumps(body).encode(), headers))))`;
  }
  async function copy(button) {
    const code = $(button.dataset.of);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // the browser forbids it, for example without https: select the code for Ctrl+C
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  // The form.
  function radios(box, name, entries, picked, onchange) {
    const label = ([value, text]) => make("label", {},
      make("input", { type: "radio", name, value, checked: value === picked, onchange }), make("span", { textContent: text }));
    box.replaceChildren(box.querySelector("legend"), ...entries.map(label));
  }
  function fill(example) {
    const given = typeof example === "string" ? [example] : Object.values(example);
    state.fields.forEach((each, at) => { each.value = [given[at] ?? ""].flat().join("\n"); keep(each, at); });
    drawCode();
    submit();
  }
  const placeOf = (tool, at) => `${tool.kind || tool.key} ${at}`; // the key under which a field's content is kept
  const keep = (each, at) => { state.typed[placeOf(state.tool, at)] = each.value; };
  function draw() {
    const tools = toolsOf(state.model), tool = state.tool = tools.find((each) => each.key === state.wanted) || tools[0];
    radios($("tools"), "tool", tools.map((each) => [each.key, each.name]), tool.key, (event) => {
      state.wanted = event.target.value;
      draw();
      document.querySelector("#tools input:checked").focus();
    });
    $("tools").hidden = tools.length < 2;
    state.fields = tool.fields.map(({ rows }, at) => make(rows > 1 ? "textarea" : "input", {
      id: `field-${at}`, value: state.typed[placeOf(tool, at)] || "", dir: "auto", autocomplete: "off", spellcheck: false,
      style: { "--rows": rows }, oninput: (event) => { keep(event.target, at); drawCode(); }, ...(rows > 1 ? { rows } : { type: "text" }),
    }));
    $("fields").replaceChildren(...tool.fields.map(({ label }, at) =>
      make("div", {}, make("label", { htmlFor: `field-${at}` }, own(label)), state.fields[at])));
    const chips = (tool.examples || []).map((example) => {
      const text = typeof example === "string" ? example : Object.values(example).flat().join(" · ");
      return make("button", { type: "button", className: "chip", onclick: () => fill(example) }, own(cut(text)));
    });
    $("examples").replaceChildren(...(chips.length ? ["Try: ", ...chips] : []));
    const name = models.length === 1 && tool.key !== "search" ? `Model ${state.model.name}. ` : "";
    $("about").replaceChildren(own(name + (tool.about || "")));
    $("tops").hidden = tool.key !== "search";
    $("orders").hidden = $("tops").hidden || orders.length < 2;
    $("mask").hidden = tool.kind !== "fill_mask";
    $("look").hidden = !tool.view;
    $("go").textContent = tool.verb;
    if (state.waiting) state.waiting.abort();
    for (const id of ["status", "failed", "found", "attention"]) $(id).replaceChildren();
    $("raw").hidden = true;
    drawCode();
  }
  $("models").append(...models.map(({ name }, value) => make("option", { value, textContent: name })));
  $("models").value = 0; // a browser may keep the choice from before a reload
  $("choose").hidden = models.length < 2;
  $("models").onchange = (event) => { state.model = models[Number(event.target.value)]; draw(); };
  radios($("orders"), "order", [...orders].reverse().map((order) => [order, ORDERS[order][0]]), orders.at(-1), () => { drawCode(); if (state.fields[0].value.trim()) submit(); });
  $("top").onchange = drawCode;
  $("ask").onsubmit = (event) => { event.preventDefault(); submit(); };
  $("ask").onkeydown = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("textarea")) return;
    event.preventDefault();
    submit();
  };
  $("look").onclick = look;
  $("mask").onclick = () => {
    const [text] = state.fields;
    text.setRangeText(MASK, text.selectionStart, text.selectionEnd, "end");
    text.dispatchEvent(new Event("input"));
    text.focus();
  };
  document.querySelectorAll("button[data-of]").forEach((each) => { each.onclick = () => copy(each); });
  draw();
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
