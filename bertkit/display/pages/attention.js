// The views of attention.html. Tokens are set as textContent only, so that the browser never interprets them as HTML.
// weights: (L, N + 1, T, T) bytes, each the square root of an attention weight times `levels`; "head" N is rollout, and N + 1 the mean
// of the heads.
(async () => {
  const $ = (id) => document.getElementById(id);
  const look = JSON.parse($("look").textContent);
  const { layers: L, heads: N, levels, words, starts, roles, opened } = look;
  const ROLLOUT = N, MEAN = N + 1, P = look.tokens.length;
  const FEWEST = 0.01, MOST_LINES = 1500, MOST_NAMED = 40, ROW = 22, TOP = 6, THUMB = 64;
  const ofPieces = await unpacked($("weights")), share = sharesOf(levels);
  let tokens, segments, marked, weights, T; // of the words, or of their pieces
  const start = (layer, head, query) => ((layer * (N + 1) + head) * T + query) * T;
  const state = { layer: opened[0], head: opened[1], token: 0, query: 0, key: 0 };

  // The weights of words: attention to a word is the sum over its pieces, and attention from it their mean.
  function ofWords() {
    const W = words.length, wordOf = new Int32Array(P), sizes = starts.map((first, word) => (starts[word + 1] ?? P) - first);
    if (W === P) return ofPieces;
    starts.forEach((first, word) => wordOf.fill(word, first));
    const result = new Uint8Array(L * (N + 1) * W * W), sums = new Float32Array(W * W);
    for (let head = 0; head < L * (N + 1); head++) {
      sums.fill(0);
      for (let query = 0; query < P; query++) for (let key = 0; key < P; key++) {
        const word = wordOf[query];
        sums[word * W + wordOf[key]] += share[ofPieces[(head * P + query) * P + key]] / sizes[word];
      }
      sums.forEach((sum, at) => { result[head * W * W + at] = Math.round(Math.sqrt(Math.min(1, sum)) * levels); });
    }
    return result;
  }

  function row(layer, head, query) { // the attention weights of a token, T of them
    const found = new Float32Array(T);
    const heads = head === MEAN ? [...Array(N).keys()] : [head];
    for (const each of heads) {
      const first = start(layer, each, query);
      for (let key = 0; key < T; key++) found[key] += share[weights[first + key]] / heads.length;
    }
    return found;
  }
  const best = (shares, count) => [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, count);
  const format = (value) => value.toFixed(3);
  const nameOf = (head) => head === MEAN ? "mean of the heads" : head === ROLLOUT ? "rollout" : `head ${head + 1}`;
  const roleOf = (layer, head) => roles[layer]?.[head] ? `: ${roles[layer][head]}` : "";
  const classOf = (token) => `t s${segments[token]}${marked[token] ? " marked" : ""}`;

  function chip(token, value, most, title) {
    const node = make("bdi", { className: classOf(token), textContent: tokens[token], title });
    node.style.setProperty("--a", most > 0 ? Math.min(1, value / most) : 0);
    return node;
  }

  // Draw a matrix, `size` pixels wide and high; a pixel shows the greatest of the weights that it covers.
  function paint(canvas, layer, head, size) {
    const rgb = getComputedStyle(document.documentElement).getPropertyValue("--ink-of-heads").trim().split(" ").map(Number);
    canvas.width = canvas.height = size;
    const strength = new Uint8Array(size * size);
    const place = Int32Array.from({ length: T }, (_, token) => Math.floor(token * size / T));
    if (head === MEAN) {
      for (let query = 0; query < T; query++) row(layer, head, query).forEach((value, key) => {
        const at = place[query] * size + place[key];
        strength[at] = Math.max(strength[at], Math.round(Math.sqrt(value) * levels));
      });
    } else for (let query = 0; query < T; query++) {
      const first = start(layer, head, query), line = place[query] * size;
      for (let key = 0; key < T; key++) {
        const value = weights[first + key], at = line + place[key];
        if (value > strength[at]) strength[at] = value;
      }
    }
    const image = new ImageData(size, size);
    for (let at = 0; at < strength.length; at++) {
      image.data[at * 4] = rgb[0];
      image.data[at * 4 + 1] = rgb[1];
      image.data[at * 4 + 2] = rgb[2];
      image.data[at * 4 + 3] = Math.round(strength[at] * 255 / levels);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // All heads: the tab key reaches one button, and the arrow keys move to the others.
  const grid = $("heads"), thumbs = [];
  grid.style.setProperty("--columns", N);
  grid.append(make("span"), ...[...Array(N).keys()].map((head) => make("span", { className: "soft", textContent: head + 1 })));
  for (let layer = 0; layer < L; layer++) {
    grid.append(make("span", { className: "soft", textContent: layer + 1 }));
    for (let head = 0; head < N; head++) {
      const role = make("small", { textContent: roles[layer]?.[head] ?? "" });
      const canvas = make("canvas"), button = make("button", { type: "button", tabIndex: -1 }, canvas, role);
      button.setAttribute("aria-label", `layer ${layer + 1}, head ${head + 1}${roleOf(layer, head)}`);
      button.title = button.getAttribute("aria-label");
      button.onclick = () => choose({ layer, head });
      thumbs.push(button);
      grid.append(button);
    }
  }
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const kept = (value, most) => Math.min(Math.max(value, 0), most - 1);
  grid.onkeydown = (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    const at = thumbs.indexOf(document.activeElement), [down, right] = moves[event.key];
    const layer = kept(Math.floor(at / N) + down, L), head = kept(at % N + right, N);
    choose({ layer, head });
    thumbs[layer * N + head].focus();
  };

  // One head.
  const options = (select, names) => names.forEach((name, value) => select.append(make("option", { value, textContent: name })));
  options($("layer"), [...Array(L).keys()].map((each) => each + 1));
  options($("head"), [...[...Array(N).keys()].map((each) => each + 1), "rollout from the input", "mean of the heads"]);
  $("layer").onchange = (event) => choose({ layer: Number(event.target.value) });
  $("head").onchange = (event) => choose({ head: Number(event.target.value) });
  $("token").onchange = (event) => choose({ token: Number(event.target.value) });
  const [from, to, matrix, frame] = ["from", "to", "matrix", "frame"].map($);
  const named = (number, properties = {}) => make("div", { className: classOf(number), ...properties }, make("bdi", { textContent: tokens[number] }));
  function show(isInPieces) {
    const own = (each, number) => [each, starts[number], starts[number + 1] ?? P];
    const units = isInPieces ? look.tokens.map((each, place) => [each, place, place + 1]) : words.map(own);
    tokens = units.map(([text]) => text);
    segments = units.map(([, first]) => look.segments[first]);
    marked = units.map(([, first, end]) => look.marked.some((place) => first <= place && place < end));
    weights = isInPieces ? ofPieces : ofWords();
    T = units.length;
    Object.assign(state, { token: Math.min(1, T - 1), query: 0, key: 0 });
    const all = [...Array(T).keys()];
    from.replaceChildren(...all.map((number) => {
      const option = named(number, { id: `from-${number}`, onclick: () => choose({ token: number }) });
      option.setAttribute("role", "option");
      return option;
    }));
    to.replaceChildren(...all.map((number) => named(number)));
    for (const side of [$("across"), $("down")]) {
      side.replaceChildren(...all.map((number) => make("bdi", { textContent: tokens[number] })));
      side.hidden = T > MOST_NAMED;
    }
    frame.parentElement.style.setProperty("--count", T);
    $("token").replaceChildren();
    options($("token"), tokens.map((each, number) => `${number + 1} ${each}`));
    drawAll();
  }
  from.onkeydown = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -T, End: T };
    if (!steps[event.key]) return;
    event.preventDefault();
    choose({ token: kept(state.token + steps[event.key], T) });
    from.children[state.token].scrollIntoView({ block: "nearest" });
  };

  function drawLines() {
    const svg = $("lines"), shares = row(state.layer, state.head, state.token), lines = [];
    for (let query = 0; query < T; query++) {
      const values = query === state.token ? shares : row(state.layer, state.head, query);
      values.forEach((value, key) => { if (value >= FEWEST) lines.push([value, query, key]); });
    }
    lines.sort((a, b) => (b[1] === state.token) - (a[1] === state.token) || b[0] - a[0]);
    svg.setAttribute("viewBox", `0 0 100 ${T * ROW}`);
    svg.style.height = `${T * ROW}px`;
    svg.replaceChildren(...lines.slice(0, MOST_LINES).reverse().map(([value, query, key]) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const places = { x1: 0, x2: 100, y1: (query + 0.5) * ROW, y2: (key + 0.5) * ROW };
      Object.entries(places).forEach(([name, place]) => line.setAttribute(name, place));
      const isChosen = query === state.token;
      line.setAttribute("class", isChosen ? "chosen" : "");
      line.setAttribute("stroke-opacity", isChosen ? 0.25 + 0.75 * value : 0.5 * value);
      line.setAttribute("stroke-width", (isChosen ? 1 : 0.5) + 3 * value);
      return line;
    }));
    for (const option of from.children) option.setAttribute("aria-selected", option.id === `from-${state.token}`);
    from.setAttribute("aria-activedescendant", `from-${state.token}`);
    [...to.children].forEach((each, key) => each.style.setProperty("--a", shares[key]));
  }

  function drawMatrix() {
    $("which").textContent = `Layer ${state.layer + 1}, ${nameOf(state.head)}${roleOf(state.layer, state.head)}`;
    paint(matrix, state.layer, state.head, T);
    const border = segments.indexOf(1);
    frame.style.setProperty("--border", border < 0 ? 1 : border / T);
    frame.classList.toggle("pair", border >= 0);
  }
  function readOut() {
    const { layer, head, query, key } = state, value = row(layer, head, query)[key];
    $("cell").style.cssText = `left:${key / T * 100}%;top:${query / T * 100}%;width:${100 / T}%;height:${100 / T}%`;
    $("reading").replaceChildren(make("bdi", { textContent: tokens[query] }), ` (${query + 1}) attends to `,
      make("bdi", { textContent: tokens[key] }), ` (${key + 1}) with weight ${format(value)}; layer ${layer + 1}, ${nameOf(head)}`);
  }
  frame.onpointermove = (event) => {
    const box = matrix.getBoundingClientRect();
    state.key = kept(Math.floor((event.clientX - box.left) / box.width * T), T);
    state.query = kept(Math.floor((event.clientY - box.top) / box.height * T), T);
    readOut();
  };
  frame.onclick = () => choose({ token: state.query });
  frame.onkeydown = (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    state.query = kept(state.query + down, T);
    state.key = kept(state.key + right, T);
    readOut();
  };

  // One token in all layers.
  function drawLayers() {
    const cells = (shares) => best(shares, TOP).flatMap((key) => [make("span", {},
      chip(key, Math.sqrt(shares[key]), 1, `token ${key + 1}`), make("small", { textContent: ` ${format(shares[key])}` })), " "]);
    $("layers").replaceChildren(...[...Array(L).keys()].map((layer) => make("tr", {},
      make("th", { textContent: `layer ${layer + 1}` }),
      ...[["attention", MEAN], ["rollout", ROLLOUT]].map(([name, head]) => {
        const cell = make("td", {}, ...cells(row(layer, head, state.token)));
        cell.dataset.name = name;
        return cell;
      }))));
    $("token").value = state.token;
  }

  // Between the two texts: the mean attention of one text's tokens to the other text, in the chosen layer and head.
  function drawBetween() {
    if (!segments.includes(1)) return;
    const source = Number($("way").value), queries = [...segments.keys()].filter((token) => segments[token] === source);
    const mean = new Float32Array(T);
    for (const query of queries) row(state.layer, state.head, query).forEach((value, key) => { mean[key] += value / queries.length; });
    const keys = [...segments.keys()].filter((token) => segments[token] !== source);
    const most = Math.max(...keys.map((key) => mean[key])), all = keys.reduce((sum, key) => sum + mean[key], 0);
    $("crossing").textContent = `Layer ${state.layer + 1}, ${nameOf(state.head)}: ${(100 * all).toFixed(1)} % of the attention goes to the other text.`;
    $("crossed").replaceChildren(...keys.flatMap((key) => [chip(key, mean[key], most, `${format(mean[key])}, token ${key + 1}`), " "]));
  }
  if ($("way")) $("way").onchange = drawBetween;

  function choose(change) {
    const headChanges = "layer" in change || "head" in change;
    Object.assign(state, change);
    if ("token" in change) state.query = state.token;
    thumbs.forEach((button, at) => {
      const isChosen = at === state.layer * N + state.head;
      button.setAttribute("aria-pressed", isChosen);
      button.tabIndex = isChosen || (state.head >= N && at === state.layer * N) ? 0 : -1;
    });
    $("layer").value = state.layer;
    $("head").value = state.head;
    drawLines();
    if (headChanges) { drawMatrix(); drawBetween(); }
    if ("token" in change) drawLayers();
    readOut();
  }
  function drawAll() {
    thumbs.forEach((button, at) => paint(button.firstChild, Math.floor(at / N), at % N, Math.min(THUMB, T)));
    choose(state);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const inPieces = $("pieces");
  if (inPieces) {
    inPieces.checked = false; // a browser may keep the choice from before a reload
    inPieces.onchange = () => show(inPieces.checked);
  }
  show(false);
  document.documentElement.dataset.ready = Math.round(performance.now());
})().catch((error) => {
  document.getElementById("failed").textContent = `This page cannot be drawn here (${error}); it needs a browser from 2023 on.`;
});
