// The matrix of an alignment. Tokens are set as textContent only, so that the browser never interprets them as HTML.
// a-weights: (L, N, rows, columns) bytes, each the square root of an attention weight times `levels`; "head" N is the mean of the heads.
(async () => {
  const $ = (id) => document.getElementById(`a-${id}`);
  const { source, target, layers: L, heads: N, levels } = JSON.parse(document.getElementById("aligned").textContent);
  const rows = target.length, columns = source.length, CELL = 20;
  const weights = await unpacked($("weights")), share = sharesOf(levels);
  const state = { layer: L - 1, head: N > 1 ? N : 0, row: 0, column: 0 };
  let shares = new Float32Array(rows * columns);

  const names = (select, entries) => entries.forEach((textContent, value) => select.append(make("option", { value, textContent })));
  names($("layer"), [...Array(L).keys()].map((each) => each + 1));
  names($("head"), [...[...Array(N).keys()].map((each) => each + 1), ...(N > 1 ? ["mean of the heads"] : [])]);
  $("choose").hidden = L * N === 1;
  for (const [side, tokens] of [["across", source], ["down", target]])
    $(side).append(...tokens.map((token) => make("bdi", { textContent: token, title: token })));

  function draw() {
    const heads = state.head === N ? [...Array(N).keys()] : [state.head];
    shares = new Float32Array(rows * columns);
    for (const head of heads) {
      const first = (state.layer * N + head) * rows * columns;
      for (let at = 0; at < shares.length; at++) shares[at] += share[weights[first + at]] / heads.length;
    }
    const ink = getComputedStyle(document.body).color.match(/\d+/g).map(Number);
    const canvas = $("matrix"), image = new ImageData(columns, rows);
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${columns * CELL}px`;
    canvas.style.height = `${rows * CELL}px`;
    shares.forEach((value, at) => image.data.set([ink[0], ink[1], ink[2], Math.round(255 * Math.min(1, value))], 4 * at));
    canvas.getContext("2d").putImageData(image, 0, 0);
    $("layer").value = state.layer;
    $("head").value = state.head;
    readOut();
  }
  function readOut() {
    const { row, column } = state, value = shares[row * columns + column];
    $("cell").style.cssText = `left:${column * CELL}px;top:${row * CELL}px;width:${CELL}px;height:${CELL}px`;
    $("reading").replaceChildren(make("bdi", { textContent: target[row] }), ` (${row + 1}) attends to `,
      make("bdi", { textContent: source[column] }), ` (${column + 1}) with weight ${value.toFixed(3)}`);
  }
  const kept = (value, most) => Math.min(Math.max(value, 0), most - 1);
  $("layer").onchange = (event) => { state.layer = Number(event.target.value); draw(); };
  $("head").onchange = (event) => { state.head = Number(event.target.value); draw(); };
  $("frame").onpointermove = (event) => {
    const box = $("matrix").getBoundingClientRect();
    state.column = kept(Math.floor((event.clientX - box.left) / CELL), columns);
    state.row = kept(Math.floor((event.clientY - box.top) / CELL), rows);
    readOut();
  };
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  $("frame").onkeydown = (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    state.row = kept(state.row + down, rows);
    state.column = kept(state.column + right, columns);
    readOut();
    $("cell").scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  document.documentElement.dataset.aligned = "true";
  // on a page with views of the encoder, attention.js reports when they are ready
  if (!document.getElementById("look")) document.documentElement.dataset.ready = Math.round(performance.now());
})().catch((error) => {
  document.getElementById("a-failed").textContent = `This page cannot be drawn here (${error}); it needs a browser from 2023 on.`;
});
